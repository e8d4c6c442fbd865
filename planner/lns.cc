// The lns solver: reductions, windows, removal by the bound, and a proof where the core is small.
#include <algorithm>
#include <cmath>
#include <memory>

#include "planner/deadline.h"
#include "planner/highs_mip.h"
#include "planner/reductions.h"
#include "planner/solver.h"
#include "planner/core_search.h"

namespace shardrun {
namespace {

constexpr double kElimination = 2e4;  // the work of one elimination in the reductions
constexpr size_t kSmallCore = 1500;   // nodes: up to here a proof is within reach
constexpr double kSmallMip = 1.2e6;   // and so many edge variables
constexpr double kExact = 1e-12;      // relative: what HiGHS is asked for
constexpr double kPriceShare = 0.3;   // of the time left, for prices
constexpr double kProofShare = 0.6;   // of the time left, for a proof
constexpr int kStaleRounds = 3;       // without a gain, before the bound is used to remove
constexpr double kRemoved = 0.05;     // of the strategies: so many gone are worth a new start
constexpr int kRemovals = 6;

/// Costs of forbidden choices become finite but larger than any solution that is allowed.
void tame(Problem& problem) {
  double sum = 0;
  bool forbidden = false;
  const auto look = [&](const std::vector<double>& costs) {
    double most = 0;
    for (double c : costs) {
      if (c == kInfeasible) forbidden = true;
      if (c != kInfeasible) most = std::max(most, std::abs(c));
    }
    sum += most;
  };
  for (const Problem::Node& node : problem.nodes) look(node.cost);
  for (const Problem::Edge& edge : problem.edges) look(edge.cost);
  if (!forbidden) return;
  const auto replace = [&](std::vector<double>& costs) {
    std::replace(costs.begin(), costs.end(), kInfeasible, 4 * sum + 1);
  };
  for (Problem::Node& node : problem.nodes) replace(node.cost);
  for (Problem::Edge& edge : problem.edges) replace(edge.cost);
}

class LnsSolver {
 public:
  LnsSolver(const Problem& problem, const SolveOptions& options)
      : problem_(problem),
        options_(options),
        end_(options.seconds, options.processor_time),
        reducer_(problem) {
    result_.solver = "lns";
  }

  SolveResult run() {
    if (options_.start != nullptr) offer(*options_.start);
    if (!reduce()) return proven("reduction");
    result_.core_nodes = reducer_.core().nodes.size() - 1;  // without the node for what is fixed
    bool found = begin();
    int stale = 0, removals = 0;
    bool removing = true, proving = options_.prove;
    while (found && !closed() && !search_->exhausted()) {
      stale = search_->round() ? 0 : stale + 1;
      take();
      if (stale < kStaleRounds || closed()) continue;
      if (removing && removals < kRemovals) {
        stale = 0;
        removing = remove();
        if (!removing) continue;
        ++removals;
        if (!reduce()) return proven("bound");
        found = begin();
      } else if (proving && small()) {
        proving = false;
        if (prove()) return finish();
      }
    }
    if (closed()) return proven("bound");
    return finish();
  }

 private:
  bool late() const { return end_.passed(); }
  bool reduce() {
    return reducer_.run(kElimination, [&] { return late(); });
  }
  bool closed() const {
    return result_.solution &&
           result_.cost <= result_.lower_bound + kExact * std::abs(result_.lower_bound);
  }
  bool small() const {
    return reducer_.core().nodes.size() <= kSmallCore && mip_size(reducer_.core()) <= kSmallMip;
  }

  void offer(const Solution& solution) {
    const Evaluation judged = evaluate(problem_, solution);
    if (judged.cost < result_.cost) {
      result_.cost = judged.cost;
      result_.solution = solution;
    } else if (!result_.solution && judged.raw_cost != kInfeasible) {
      result_.tightest = solution;
    }
  }
  void offer_core(const Solution& choice) { offer(reducer_.expand(choice)); }

  /// Of the search, what is new.
  void take() {
    if (!search_->elites().empty()) offer_core(search_->elites().front().choice);
    // Strategies that have been removed are in no better solution: the bound is of those.
    result_.lower_bound =
        std::max(result_.lower_bound, std::min(search_->lower_bound(), result_.cost));
  }

  /// A search in the core as it is now. False if it found nothing that fits.
  bool begin() {
    std::optional<Solution> known;
    if (result_.solution) known = reducer_.restrict(*result_.solution);
    Problem core = reducer_.core();
    tame(core);
    if (search_) work_ += search_->work();
    part_ = options_;
    if (options_.nodes > 0) part_.nodes = std::max<int64_t>(1, options_.nodes - work_);
    search_ = std::make_unique<CoreSearch>(std::move(core), part_, end_);
    search_->price(end_.within(kPriceShare * end_.left()));
    const bool found = search_->start(known ? &*known : nullptr);
    take();
    return found;
  }

  /// Takes out of the core what the bound excludes. False if that is too little to begin anew.
  bool remove() {
    const std::vector<std::vector<bool>> gone = search_->removable(result_.cost);
    double count = 0, all = 0;
    for (const std::vector<bool>& node : gone) {
      count += static_cast<double>(std::count(node.begin(), node.end(), true));
      all += static_cast<double>(node.size());
    }
    if (count < kRemoved * all || count == 0) return false;
    for (size_t i = 1; i < gone.size(); ++i) {
      if (std::find(gone[i].begin(), gone[i].end(), true) != gone[i].end())
        reducer_.remove(static_cast<int>(i), gone[i]);
    }
    return true;
  }

  /// True if it is known now what the best solution is.
  bool prove() {
    std::optional<Solution> start;
    if (result_.solution) start = reducer_.restrict(*result_.solution);
    if (start && evaluate(reducer_.core(), *start).cost == kInfeasible) start.reset();
    const double known = result_.cost;
    const Deadline until = end_.within(kProofShare * end_.left());
    const MipResult mip =
        solve_mip(reducer_.core(), start ? &*start : nullptr, until, options_.seed, kExact);
    if (mip.solution) offer_core(*mip.solution);
    if (!mip.infeasible && !mip.optimal) {
      result_.lower_bound = std::max(result_.lower_bound, std::min(mip.bound, known));
      return false;
    }
    // HiGHS' tolerances may hide the last digits; exact regions see them.
    if (result_.solution && begin() && !search_->exhausted()) {
      search_->round();
      take();
    }
    proven("mip");
    return true;
  }

  SolveResult proven(const char* how) {
    result_.solver = how;
    if (result_.solution) result_.lower_bound = result_.cost;
    result_.proven_infeasible = !result_.solution;
    return finish();
  }
  SolveResult finish() {
    if (result_.solution) {
      result_.lower_bound = std::min(result_.lower_bound, result_.cost);
      result_.proven_infeasible = false;
    }
    result_.seconds = end_.elapsed();
    return result_;
  }

  const Problem& problem_;
  const SolveOptions& options_;
  Deadline end_;
  Reducer reducer_;
  SolveOptions part_;
  std::unique_ptr<CoreSearch> search_;
  SolveResult result_;
  int64_t work_ = 0;
};

}  // namespace

SolveResult solve_lns(const Problem& problem, const SolveOptions& options) {
  return LnsSolver(problem, options).run();
}

}  // namespace shardrun
