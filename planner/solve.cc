// Which solver for which Problem.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "planner/reductions.h"
#include "planner/solver.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kElimination = 2e4;  // the work of one elimination in the reductions

constexpr size_t kSmallCore = 1500;  // nodes: auto tries a proof
constexpr size_t kFewNodes = 4000;   // before the reductions
constexpr double kFirstShare = 0.2;  // of the time, for a start

/// `second` was told of `first`'s solution, and both bounds hold.
SolveResult best_of(const SolveResult& first, SolveResult second) {
  if (first.solution && first.cost < second.cost) {
    second.solution = first.solution;
    second.cost = first.cost;
    second.solver = first.solver;
  }
  second.lower_bound = std::max(first.lower_bound, second.lower_bound);
  if (second.solution) second.lower_bound = std::min(second.lower_bound, second.cost);
  second.proven_infeasible =
      !second.solution && (first.proven_infeasible || second.proven_infeasible);
  if (!second.tightest) second.tightest = first.tightest;
  return second;
}

}  // namespace

SolveResult solve(const Problem& problem, const std::string& solver, const SolveOptions& options) {
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const std::vector<std::string> known = {"auto", "ilp", "beam", "lns", "ilp+lns", "beam+lns"};
  SR_REQUIRE(std::find(known.begin(), known.end(), solver) != known.end(), invalid_input,
             "solver '", solver,
             "' is not known; known are auto, ilp, beam, lns, ilp+lns, beam+lns");
  check_problem(problem);
  size_t core_nodes = 0;
  {
    Reducer reducer(problem);
    if (reducer.run(kElimination)) {
      core_nodes = reducer.core().nodes.size() - 1;  // without the node for what is fixed
    }
  }
  const auto run = [&](SolveResult (*solver_of)(const Problem&, const SolveOptions&),
                       double seconds, const SolveResult* first) {
    SolveOptions part = options;
    part.seconds = std::max(0.0, std::min(seconds, options.seconds - elapsed()));
    part.prove = solver == "auto";
    if (first != nullptr && first->solution) part.start = &*first->solution;
    SolveResult result = solver_of(problem, part);
    return first == nullptr ? result : best_of(*first, std::move(result));
  };
  SolveResult result;
  if (solver == "ilp" || solver == "ilp+lns") {
    result = run(solve_ilp, solver == "ilp" ? options.seconds : options.seconds / 3, nullptr);
  } else if (solver == "beam" || solver == "beam+lns") {
    result = run(solve_beam, solver == "beam" ? options.seconds : options.seconds / 3, nullptr);
  } else if (solver == "auto" && core_nodes <= kSmallCore && problem.nodes.size() <= kFewNodes) {
    // Few nodes, mostly with many strategies: the ILP's own start is the better one.
    result = run(solve_ilp, kFirstShare * options.seconds, nullptr);
    if (!result.solution || result.cost > result.lower_bound * (1 + options.gap))
      result = run(solve_lns, options.seconds, &result);
  } else {
    result = run(solve_lns, options.seconds, nullptr);
  }
  if (solver == "ilp+lns" || solver == "beam+lns")
    result = run(solve_lns, options.seconds, &result);
  result.core_nodes = core_nodes;
  result.seconds = elapsed();
  return result;
}

}  // namespace shardrun
