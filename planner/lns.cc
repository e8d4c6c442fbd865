// The lns solver: reductions, windows, removal by the bound, and a proof where the core is small.
#include <algorithm>
#include <cmath>
#include <memory>

#include "planner/core_search.h"
#include "planner/deadline.h"
#include "planner/highs_mip.h"
#include "planner/reductions.h"
#include "planner/solver.h"

namespace shardrun {
namespace {

constexpr double kElimination = 2e4;  // the work of one elimination in the reductions
constexpr size_t kSmallCore = 1500;   // nodes: up to here a proof is within reach
constexpr double kSmallMip = 1.2e6;   // and so many edge variables
constexpr double kExact = 1e-12;      // relative: what HiGHS is asked for
constexpr double kPriceShare = 0.3;   // of the time left, for prices
constexpr double kProofShare = 0.6;   // of the time left, for a proof
constexpr int kStaleRounds = 3;       // without a gain, before the bound is used to remove
constexpr int kStaleBeforeProof = 30;
constexpr double kProofFrom = 0.3;  // of the time or the budget: no more waiting for a gain
constexpr double kRemoved = 0.05;   // of the strategies: so many gone are worth a new start
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
        removing = remove();
        if (!removing) continue;
        stale = 0;
        ++removals;
        if (!reduce()) return proven("bound");
        found = begin();
      } else if (proving && small() && (stale >= kStaleBeforeProof || used() > kProofFrom)) {
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
    } else if (judged.raw_cost != kInfeasible && judged.peak_bytes < least_peak_) {
      least_peak_ = judged.peak_bytes;
      result_.tightest = solution;
    }
  }
  void offer_core(const Solution& choice) { offer(reducer_.expand(choice)); }

  /// Of the search, what is new.
  void take() {
    if (!search_->elites().empty()) offer_core(search_->elites().front().choice);
    if (!result_.solution && !search_->tightest().empty()) offer_core(search_->tightest());
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

  /// How much of the time or of the node budget is used up.
  double used() const {
    if (options_.nodes <= 0) return end_.share();
    return static_cast<double>(work_ + search_->work()) / static_cast<double>(options_.nodes);
  }

  /// Takes out of the core what the bound excludes. False if that is too little to begin anew.
  bool remove() {
    const CoreSearch::Excluded gone = search_->excluded(result_.cost);
    const std::vector<Problem::Edge>& edges = reducer_.core().edges;
    double share = 0;
    const auto count = [&](const std::vector<std::vector<bool>>& lists, const auto& known) {
      double more = 0, all = 0;
      for (size_t k = 0; k < lists.size(); ++k) {
        for (size_t c = 0; c < lists[k].size(); ++c) more += lists[k][c] && !known(k, c);
        all += static_cast<double>(lists[k].size());
      }
      if (all > 0) share = std::max(share, more / all);
    };
    count(gone.strategies, [](size_t, size_t) { return false; });
    count(gone.pairs, [&](size_t e, size_t c) { return edges[e].cost[c] == kInfeasible; });
    if (share < kRemoved) return false;
    for (size_t e = 0; e < gone.pairs.size(); ++e)
      reducer_.forbid(static_cast<int>(e), gone.pairs[e]);
    for (size_t i = 1; i < gone.strategies.size(); ++i) {
      const std::vector<bool>& node = gone.strategies[i];
      if (std::find(node.begin(), node.end(), true) != node.end())
        reducer_.remove(static_cast<int>(i), node);
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
    const MipResult mip = solve_mip(reducer_.core(), start ? &*start : nullptr, until,
                                    options_.seed, kExact, search_->scarce_times());
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
  int64_t least_peak_ = std::numeric_limits<int64_t>::max();
};

}  // namespace

SolveResult solve_lns(const Problem& problem, const SolveOptions& options) {
  return LnsSolver(problem, options).run();
}

}  // namespace shardrun
