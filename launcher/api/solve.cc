// solve_problem: the public face of planner/solver/solver.h.
#include <algorithm>

#include "base/clock.h"
#include "choices.h"
#include "planner/contest/problem_file.h"
#include "planner/solver/solver.h"
#include "ranks/world.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

/// Kept back for what solvers do not watch the clock in: the last step of each, and the output.
double reserve(double seconds) { return std::min(4.0, 0.4 + 0.025 * seconds); }

}  // namespace

SolveReport solve_problem(const SolveRequest& request) {
  return at_boundary([&] {
    const SolverKind solver = parse_choice("solver", kSolvers, request.solver);
    const double begin = now_seconds();
    const auto elapsed = [&] { return now_seconds() - begin; };
    const double seconds = request.seconds - reserve(request.seconds);
    SolveReport report;
    const std::optional<Problem> read = read_problem(
        request.file, [&] { return elapsed() >= seconds; }, &report.rounded);
    if (!read) {
      report.solver = "reading";
      report.lower_bound = -kInfeasible;
      report.seconds = elapsed();
      return report;
    }
    const Problem& problem = *read;
    SolveOptions options;
    options.seconds = std::max(0.0, seconds - elapsed());
    options.seed = request.seed;
    options.nodes = request.nodes;
    options.threads = request.threads;
    SolveResult result = solve(problem, solver, options);
    report.found = result.solution.has_value();
    if (report.found) report.choices = std::move(*result.solution);
    if (!report.found) {
      if (result.tightest) {
        const Evaluation closest = evaluate(problem, *result.tightest);
        report.closest_bytes = closest.peak_bytes;
        report.closest_time = closest.peak_time;
      }
      const PeakBytes needed = least_bytes(problem);
      report.needed_bytes = needed.bytes;
      report.needed_time = needed.time;
      report.limit_bytes = problem.memory_limit;
    }
    report.cost = result.cost;
    report.lower_bound = result.lower_bound;
    report.infeasible = result.proven_infeasible;
    report.solver = result.solver;
    report.nodes = static_cast<int64_t>(problem.nodes.size());
    report.core_nodes = static_cast<int64_t>(result.core_nodes);
    report.seconds = elapsed();
    return report;
  });
}

}  // namespace shardrun
