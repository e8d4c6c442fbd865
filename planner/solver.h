// Solvers of a Problem behind one interface.
#pragma once

#include <optional>
#include <string>

#include "planner/problem.h"

namespace shardrun {

struct SolveOptions {
  double seconds = 10;  // give up improving after this
  uint64_t seed = 0;
  double gap = 1e-9;                // relative: a solution this close to its bound is good enough
  const Solution* start = nullptr;  // a known solution, feasible or not
  int64_t nodes = 0;   // lns: stop after so many nodes of its search trees; 0: not limited
  int threads = 1;     // lns: the result depends on it
  int beam_width = 64;  // beam: candidates kept
};

struct SolveResult {
  std::optional<Solution> solution;  // nullopt: none found that fits
  double cost = kInfeasible;
  double lower_bound =
      -kInfeasible;  // no solution that fits costs less; equal to cost if proven optimal
  bool proven_infeasible = false;
  /// If none fits: the one that is allowed and needs the least memory of all that were seen.
  std::optional<Solution> tightest;
  std::string solver;  // which part finished: "reduction", "elimination", "bound", "mip", "search"
  double seconds = 0;
};

/// Exact reductions; then elimination of all nodes if the tables stay small; else bounds by message
/// passing, solutions by local search and the removal of what the gap between them rules out, in
/// turns; then HiGHS on what is left. Memory is one constraint per time step that matters, priced
/// in the bounds. The result depends on the clock only if it runs out; pure otherwise.
SolveResult solve_ilp(const Problem& problem, const SolveOptions& options);

/// Exact reductions; prices of memory by message passing, which also gives the bound; then
/// large-neighbourhood search: regions of up to some hundred nodes are solved exactly, or nearly, by
/// bucket elimination and tree search while the rest stays (planner/region.h). With a node budget
/// that ends before the seconds do, deterministic.
SolveResult solve_lns(const Problem& problem, const SolveOptions& options);

}  // namespace shardrun
