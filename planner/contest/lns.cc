// The lns solver: reductions, neighbourhoods, removal by the bound, and a proof where the core is
// small.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "planner/contest/core_search.h"
#include "planner/solver/deadline.h"
#include "planner/solver/highs_mip.h"
#include "planner/solver/presolve/reductions.h"
#include "planner/solver/solver.h"

namespace shardrun {
namespace {

/// When the lns solver searches, removes and proves.
struct LnsSettings {
  double price_fraction = 0.3;  // of the time left, for prices of memory
  int attempts = 4;             // at a first solution, before a small core is given to HiGHS
  // Removal by the bound.
  int stale_rounds = 3;   // without a gain, before the bound is used to remove
  double removed = 0.05;  // fraction of the strategies: so many gone are worth a new start
  int removals = 6;       // new starts at most
  // Proofs by HiGHS.
  size_t small_core = 1500;     // nodes: up to here a proof is within reach
  double tiny_mip = 500;        // edge variables: proven at once
  double small_mip = 2e4;       // edge variables: proven when search and removal gain nothing
  int proof_rounds = 2;         // of removal before the program is built
  size_t memory_rows = 32;      // of the program, at first; those that are violated are added
  double proof_fraction = 0.5;  // of the time left, for a proof
  double gap = 1e-12;           // relative: what HiGHS is asked for, and what counts as proven
};
constexpr LnsSettings kLns;
constexpr int kMostAttempts = std::numeric_limits<int>::max();

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
        end_(options.seconds, options.clock),
        reducer_(problem) {
    result_.solver = "lns";
  }

  SolveResult run() {
    if (options_.start != nullptr) offer(*options_.start);
    if (!reduce()) return proven("reduction");
    result_.core_nodes = reducer_.core().nodes.size() - 1;  // without the node for what is fixed
    if (late()) return finish();
    const size_t nodes = reducer_.core().nodes.size();
    bool proving = options_.prove && nodes <= kLns.small_core;
    bool found = begin(proving ? kLns.attempts : kMostAttempts);
    const bool tiny = mip_size(reducer_.core()) <= kLns.tiny_mip;
    if (proving && !closed() && (!found || tiny)) {
      proving = false;
      if (prove()) return proven("mip");
      if (!found) found = search_->start(nullptr);
      take();
    }
    int stale = 0, removals = 0;
    bool removing = true;
    while (found && !closed() && !search_->exhausted()) {
      stale = search_->round() ? 0 : stale + 1;
      take();
      if (stale < kLns.stale_rounds || closed()) continue;
      if (removing && removals < kLns.removals) {
        removing = remove();
        if (!removing) continue;
        stale = 0;
        ++removals;
        if (!reduce()) return proven("bound");
        found = begin(kMostAttempts);
      } else if (proving) {
        proving = false;
        if (prove()) return proven("mip");
      }
    }
    if (closed()) return proven("bound");
    return finish();
  }

 private:
  bool late() const { return end_.passed(); }
  bool reduce() {
    return reducer_.run(Reducer::kQuickWork, [&] { return late(); });
  }
  bool closed() const {
    return result_.solution &&
           result_.cost <= result_.lower_bound + kLns.gap * std::abs(result_.lower_bound);
  }

  void offer(const Solution& solution) {
    const Evaluation judged = evaluate(problem_, solution);
    result_.offer(solution, judged.raw_cost, judged.peak_bytes, judged.cost < kInfeasible);
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

  /// A search in a core, its memory priced.
  std::unique_ptr<CoreSearch> priced(const Problem& core) {
    Problem tamed = core;
    tame(tamed);
    part_ = options_;
    if (options_.nodes > 0) part_.nodes = std::max<int64_t>(1, options_.nodes - work_);
    auto search = std::make_unique<CoreSearch>(std::move(tamed), part_, end_);
    search->price(end_.within(kLns.price_fraction * end_.left()));
    return search;
  }

  /// A search in the core as it is now. False if it found nothing that fits.
  bool begin(int attempts) {
    std::optional<Solution> known;
    if (result_.solution) known = reducer_.restrict(*result_.solution);
    if (search_) work_ += search_->work();
    search_ = priced(reducer_.core());
    const bool found = search_->start(known ? &*known : nullptr, attempts);
    take();
    return found;
  }

  /// Takes out of the core what the bound excludes. False if that is too little to begin anew.
  bool remove() {
    const CoreSearch::Excluded gone = search_->excluded(result_.cost);
    double count = 0, all = 0;
    for (const std::vector<bool>& node : gone.strategies) {
      count += static_cast<double>(std::count(node.begin(), node.end(), true));
      all += static_cast<double>(node.size());
    }
    if (count < kLns.removed * all || count == 0) return false;
    remove_strategies(reducer_, gone);
    return true;
  }
  static void remove_strategies(Reducer& reducer, const CoreSearch::Excluded& gone) {
    for (size_t i = 1; i < gone.strategies.size(); ++i) {
      const std::vector<bool>& node = gone.strategies[i];
      if (std::find(node.begin(), node.end(), true) != node.end())
        reducer.remove(static_cast<int>(i), node);
    }
  }

  /// True if it is known now what the best solution is. Here pairs go, too: they make the program
  /// small, but a search would stumble over what is forbidden in its midst.
  bool prove() {
    Reducer tight = reducer_;
    for (int round = 0; round < kLns.proof_rounds; ++round) {
      const CoreSearch::Excluded gone =
          (round == 0 ? *search_ : *priced(tight.core())).excluded(result_.cost);
      for (size_t e = 0; e < gone.pairs.size(); ++e)
        tight.forbid(static_cast<int>(e), gone.pairs[e]);
      remove_strategies(tight, gone);
      if (!tight.run(Reducer::kQuickWork, [&] { return late(); })) return true;
    }
    if (late() || mip_size(tight.core()) > kLns.small_mip) return false;
    const std::vector<size_t> times = priced(tight.core())->scarcest_times(kLns.memory_rows);
    std::optional<Solution> start;
    if (result_.solution) start = tight.restrict(*result_.solution);
    if (start && evaluate(tight.core(), *start).cost == kInfeasible) start.reset();
    const double known = result_.cost;
    const Deadline until = end_.within(kLns.proof_fraction * end_.left());
    SolveOptions exactly = options_;
    exactly.gap = kLns.gap;
    const MipResult mip = solve_mip(tight.core(), start ? &*start : nullptr, until, exactly, times);
    if (mip.solution) offer(tight.expand(*mip.solution));
    if (!mip.infeasible && !mip.optimal) {
      result_.lower_bound = std::max(result_.lower_bound, std::min(mip.bound, known));
      return false;
    }
    // HiGHS' tolerances may hide the last digits; exact regions see them.
    if (result_.solution && begin(1) && !search_->exhausted()) {
      search_->round();
      take();
    }
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
