// The ILP solver: reductions, elimination, bounds, local search and HiGHS in turns.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "planner/solver/bound.h"
#include "planner/solver/deadline.h"
#include "planner/solver/elimination.h"
#include "planner/solver/highs_mip.h"
#include "planner/solver/local_search.h"
#include "planner/solver/presolve/reductions.h"
#include "planner/solver/solver.h"

namespace shardrun {
namespace {

/// When the ILP solver reduces, bounds, searches and calls HiGHS.
struct IlpSettings {
  int rounds = 12;          // of reduction, bound and search, and removal
  double first_work = 2e6;  // of reductions, as Reducer::run counts it, before anything is known
  double work = 2e7;        // of reductions in later rounds, whose cores are smaller
  double mip_variables = 50e3;  // edge variables that HiGHS is given at most
  // Sweeps of message passing in a round.
  int sweeps = 200;            // at most
  double gain = 1e-5;          // relative: a bound that rises by less has stalled
  int patience = 6;            // sweeps without a gain; with memory the prices end it
  int decode_every = 8;        // sweeps between two solutions
  int decode_limited = 4;      // the same with memory, where fewer of them fit
  size_t worth_removing = 50;  // one in so many strategies: less does not pay for another round
  // Local search at the end of a round, in forest moves.
  int search_rounds = 60;        // from what was decoded last
  int best_search_rounds = 150;  // from the best known solution
  // Solutions that need little memory.
  int small_rounds = 3;      // after each, times near its peak weigh more
  double peak_weight = 1e4;  // of the last peak, in times alive
  double tie = 1e-3;         // of real costs, which only break ties
  // Of the seconds, one in so many.
  double free_divisor = 3;   // for the problem without the limit
  double small_divisor = 6;  // for solutions that need little memory
};
constexpr IlpSettings kIlp;

class IlpSolver {
 public:
  IlpSolver(const Problem& problem, double seconds, const SolveOptions& options)
      : problem_(problem), end_(seconds, options.clock), options_(options) {
    options_.gap = std::max(options.gap, kRounding);
  }

  void offer(const Solution& solution) {
    const Evaluation judged = evaluate(problem_, solution);
    result_.offer(solution, judged.raw_cost, judged.peak_bytes, judged.cost < kInfeasible);
  }
  void offer_bound(double bound) { result_.lower_bound = std::max(result_.lower_bound, bound); }

  SolveResult run() {
    narrow_and_solve();
    if (result_.solution) {
      if (proven_ || result_.cost - result_.lower_bound <= kRounding * std::abs(result_.cost)) {
        result_.lower_bound = result_.cost;
      }
      result_.lower_bound = std::min(result_.lower_bound, result_.cost);
      result_.proven_infeasible = false;
    }
    result_.seconds = end_.elapsed();
    return result_;
  }

 private:
  bool late() const { return end_.passed(); }
  bool closed() const {
    return result_.solution &&
           (result_.cost - result_.lower_bound <= options_.gap * std::abs(result_.cost) ||
            is_enough());
  }
  /// Would all that is left to gain save less, in SolveOptions::steps, than the seconds spent?
  bool is_enough() const {
    return options_.steps > 0 && result_.solution &&
           (result_.cost - result_.lower_bound) * options_.steps <= end_.elapsed();
  }
  void finish(const char* how) {
    result_.solver = how;
    proven_ = true;
    if (!result_.solution) result_.proven_infeasible = true;
  }

  void narrow_and_solve() {
    Reducer reducer(problem_);
    double work = kIlp.first_work;
    for (int round = 0; round < kIlp.rounds; ++round) {
      if (!reducer.run(work, [&] { return late(); })) return finish("reduction");
      const Problem& core = reducer.core();
      if (round == 0) result_.core_nodes = core.nodes.size() - 1;
      const bool single =
          std::all_of(core.nodes.begin(), core.nodes.end(),
                      [](const Problem::Node& node) { return node.cost.size() == 1; });
      if (single) {
        offer(reducer.expand(Solution(core.nodes.size(), 0)));
        return finish("reduction");
      }
      const bool memory =
          std::any_of(core.nodes.begin() + 1, core.nodes.end(),
                      [](const Problem::Node& node) { return !node.claims.empty(); });
      if (!memory && fixed_fits(core)) {
        if (const std::optional<Solution> best =
                eliminate_all(core, {.late = [&] { return late(); }})) {
          offer(reducer.expand(*best));
          return finish("elimination");
        }
      }
      if (late()) break;
      const size_t removed = improve(reducer, core, round);
      if (closed()) {
        result_.solver = "bound";
        return;
      }
      work = kIlp.work;
      if (removed == 0 || late()) break;
    }
    result_.solver = "search";
    if (!reducer.run(work, [&] { return late(); })) return finish("reduction");
    const Problem& core = reducer.core();
    if (!options_.mip || late() || mip_size(core) > kIlp.mip_variables) return;
    const std::optional<Solution> start = best_of_core(core, reducer);
    const MipResult mip = solve_mip(core, start ? &*start : nullptr, end_, options_);
    // The core lacks only what cannot beat the solution that is known, and is worse by no more than
    // rounding.
    const double known = result_.solution ? result_.cost : kInfeasible;
    offer_bound(std::min(mip.bound, known));
    if (mip.solution) offer(reducer.expand(*mip.solution));
    if (mip.infeasible || (mip.optimal && options_.gap <= kRounding)) return finish("mip");
    if (mip.optimal) result_.solver = "mip";
  }

  static bool fixed_fits(const Problem& core) {
    Problem fixed;
    fixed.memory_limit = core.memory_limit;
    fixed.nodes = {core.nodes[0]};
    return evaluate(fixed, {0}).cost != kInfeasible;
  }

  /// The best known solution in the core, if all its choices are still there.
  std::optional<Solution> best_of_core(const Problem& core, const Reducer& reducer) const {
    if (!result_.solution) return std::nullopt;
    std::optional<Solution> found = reducer.restrict(*result_.solution);
    if (found && evaluate(core, *found).cost == kInfeasible) return std::nullopt;
    return found;
  }

  /// Bounds and solutions of the core; removes what cannot be in a better solution. Returns how
  /// many strategies went, 0 if too few to go on.
  size_t improve(Reducer& reducer, const Problem& core, int round) {
    Bound bound(core);
    LocalSearch local(core);
    MemoryUse memory(local.flat());
    const bool limited = core.limited() && memory.times() > 0;
    MemoryPrices prices(limited ? memory.times() : 0);
    int stalled = 0;
    double best_bound = -kInfeasible;
    std::vector<std::vector<bool>> removed;
    for (const Problem::Node& node : core.nodes) removed.emplace_back(node.cost.size(), false);
    LocalSearchOptions search;
    search.seed = options_.seed + static_cast<uint64_t>(round) * 101;
    search.out_of_time = [&] { return late(); };
    search.prices = limited ? &prices.price() : nullptr;

    const auto try_solution = [&](const Solution& solution, int rounds) {
      search.rounds = rounds;
      search.target = result_.lower_bound + kRounding * std::abs(result_.lower_bound);
      if (std::optional<Solution> found = local.improve(solution, search)) {
        offer(reducer.expand(*found));
      }
      if (local.tightest()) offer(reducer.expand(*local.tightest()));
    };
    const auto mark = [&] {
      if (!result_.solution) return;
      const double margin = result_.cost + kRounding * std::abs(result_.cost) -
                            (bound.bound_before_sweep() - prices.priced_limit());
      for (size_t i = 0; i < core.nodes.size(); ++i) {
        const std::span<const double> slack = bound.slack(static_cast<int>(i));
        for (size_t a = 0; a < slack.size(); ++a) {
          if (slack[a] > margin) removed[i][a] = true;
        }
      }
    };
    for (int sweep = 0; sweep < kIlp.sweeps && !late(); ++sweep) {
      const double value = bound.sweep() - prices.priced_limit();
      mark();
      const bool gained = value > best_bound + kIlp.gain * std::abs(best_bound);
      best_bound = std::max(best_bound, value);
      offer_bound(value);
      stalled = gained ? 0 : stalled + 1;
      if (sweep % kIlp.decode_every == 2 || (limited && sweep % kIlp.decode_limited == 1))
        try_solution(bound.decoded(), 0);
      if (closed()) break;
      if (!limited) {
        if (stalled >= kIlp.patience) break;
        continue;
      }
      if (sweep % 2 == 1) {
        memory.reset(bound.decoded());
        prices.settle(stalled);
        if (prices.settled() || !prices.move(memory, value, result_.cost)) break;
        for (size_t i = 0; i < core.nodes.size(); ++i) {
          if (!core.nodes[i].claims.empty())
            bound.add_cost(static_cast<int>(i),
                           memory.priced(static_cast<int>(i), prices.change()));
        }
      }
    }
    if (!closed()) try_solution(bound.decoded(), kIlp.search_rounds);
    if (!closed()) {
      const std::optional<Solution> known = best_of_core(core, reducer);
      if (known) try_solution(*known, kIlp.best_search_rounds);
    }
    // With the best solution known only now, one more look.
    if (!late() && !closed()) {
      const double value = bound.sweep() - prices.priced_limit();
      offer_bound(value);
      mark();
    }
    return remove(reducer, removed);
  }

  static size_t remove(Reducer& reducer, const std::vector<std::vector<bool>>& removed) {
    size_t total = 0, count = 0;
    for (size_t i = 0; i < removed.size(); ++i) {
      const size_t gone =
          static_cast<size_t>(std::count(removed[i].begin(), removed[i].end(), true));
      total += removed[i].size();
      if (gone == 0) continue;
      count += gone;
      reducer.remove(static_cast<int>(i), removed[i]);
    }
    // A handful does not pay for another round.
    return count * kIlp.worth_removing > total ? count : 0;
  }

  const Problem& problem_;
  Deadline end_;
  SolveOptions options_;
  SolveResult result_;
  bool proven_ = false;
};

/// A solution that needs little memory: bytes x time alive is the cost, real costs only break ties.
/// Times near the last peak weigh more each round.
void offer_small_solutions(const Problem& problem, IlpSolver& solver, double seconds,
                           const SolveOptions& options) {
  Problem small = problem;
  small.memory_limit = std::numeric_limits<int64_t>::max();
  for (Problem::Edge& edge : small.edges) {
    for (double& cost : edge.cost) cost = cost == kInfeasible ? kInfeasible : kIlp.tie * cost;
  }
  int peak_time = -1;
  for (int round = 0; round < kIlp.small_rounds; ++round) {
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      const Problem::Node& node = problem.nodes[i];
      for (size_t a = 0; a < node.cost.size(); ++a) {
        if (node.cost[a] == kInfeasible) continue;
        double weighted = 0;
        for (const Problem::Claim& claim : node.claims) {
          for (const Problem::Interval& live : claim.live) {
            double weight = std::max(0, live.last - live.first + 1);
            if (live.first <= peak_time && peak_time <= live.last)
              weight += kIlp.peak_weight * round;
            weighted += weight * static_cast<double>(claim.bytes[a]);
          }
        }
        small.nodes[i].cost[a] = weighted + kIlp.tie * node.cost[a];
      }
    }
    const SolveResult result = IlpSolver(small, seconds / kIlp.small_rounds, options).run();
    if (!result.solution) return;
    solver.offer(*result.solution);
    peak_time = evaluate(problem, *result.solution).peak_time;
  }
}

}  // namespace

SolveResult solve_ilp(const Problem& problem, const SolveOptions& options) {
  const Deadline wall(0);
  check_problem(problem);
  IlpSolver solver(problem, options.seconds, options);
  const auto timed = [&](SolveResult result) {
    result.seconds = wall.elapsed();
    return result;
  };
  if (options.start != nullptr) solver.offer(*options.start);
  solver.offer_bound(options.lower_bound);
  if (problem.limited()) {
    // Without the limit first: if that fits it is the answer, and its bound holds in any case.
    Problem relaxed = problem;
    relaxed.memory_limit = std::numeric_limits<int64_t>::max();
    const SolveResult free = IlpSolver(relaxed, options.seconds / kIlp.free_divisor, options).run();
    if (!free.solution) return timed(free);
    solver.offer(*free.solution);
    solver.offer_bound(free.lower_bound);
    if (evaluate(problem, *free.solution).cost != kInfeasible) return timed(free);
    offer_small_solutions(problem, solver, options.seconds / kIlp.small_divisor, options);
  }
  return timed(solver.run());
}

}  // namespace shardrun
