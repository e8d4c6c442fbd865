// Which solver for which Problem.
#include <algorithm>

#include "base/error.h"
#include "planner/solver/deadline.h"
#include "planner/solver/solver.h"

namespace shardrun {
namespace {

/// `second` started from `first`'s solution, and both bounds hold.
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
  if (second.core_nodes == 0) second.core_nodes = first.core_nodes;
  return second;
}

}  // namespace

SolveResult solve(const Problem& problem, SolverKind kind, const SolveOptions& options) {
  const bool goes_on = kind == SolverKind::ilp_lns || kind == SolverKind::beam_lns;
  const Deadline end(options.seconds, options.clock);
  check_problem(problem);
  const auto run = [&](SolveResult (*solver_of)(const Problem&, const SolveOptions&),
                       double seconds, const SolveResult* first) {
    SolveOptions part = options;
    part.seconds = std::max(0.0, std::min(seconds, end.left()));
    part.prove = kind == SolverKind::automatic;
    if (first != nullptr && first->solution) part.start = &*first->solution;
    SolveResult result = solver_of(problem, part);
    return first == nullptr ? result : best_of(*first, std::move(result));
  };
  SolveResult result;
  if (end.passed() && options.start == nullptr) {  // before anything was tried
    result.solver = "none";
    result.seconds = end.elapsed();
    return result;
  }
  const double seconds = goes_on ? options.seconds / 3 : options.seconds;
  if (kind == SolverKind::ilp || kind == SolverKind::ilp_lns) {
    result = run(solve_ilp, seconds, nullptr);
  } else if (kind == SolverKind::beam || kind == SolverKind::beam_lns) {
    result = run(solve_beam, seconds, nullptr);
  } else {
    result = run(solve_lns, options.seconds, nullptr);
  }
  if (goes_on) result = run(solve_lns, options.seconds, &result);
  result.seconds = end.elapsed();
  return result;
}

}  // namespace shardrun
