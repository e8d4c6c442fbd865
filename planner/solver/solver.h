// The solvers of a Problem, behind one interface.
#pragma once

#include <optional>
#include <string>

#include "planner/names/search_names.h"
#include "planner/solver/deadline.h"
#include "planner/solver/problem.h"

namespace shardrun {

struct SolveOptions {
  double seconds = 10;  // give up improving after this
  /// By the clock of work what is found does not depend on the machine; not for lns.
  Deadline::Clock clock = Deadline::Clock::wall;
  uint64_t seed = 0;
  double gap = 1e-9;  // relative: a solution this close to its bound is good enough
  /// ilp, where costs are seconds a step: good enough is also what leaves a better solution less to
  /// save, in so many steps, than the seconds spent already. 0: costs are not.
  double steps = 0;
  const Solution* start = nullptr;  // a known solution, feasible or not
  /// ilp: known of solutions that are cheaper than `start`. What it proves ends the search sooner.
  double lower_bound = -kInfeasible;
  int64_t nodes = 0;    // lns: stop after so many nodes of its search trees; 0: not limited
  int threads = 1;      // lns: the result depends on it
  int beam_width = 64;  // beam: candidates kept
  bool mip = true;      // ilp: HiGHS for what all else leaves open
  bool prove = false;  // lns: where the core is small, remove what the bound excludes and use HiGHS
};

struct SolveResult : Incumbent {
  double lower_bound =
      -kInfeasible;  // no solution that fits costs less; equal to cost if proven optimal
  bool proven_infeasible = false;
  /// Which part finished: "reduction", "elimination", "bound", "mip", "search"; "none": there was
  /// no time.
  std::string solver;
  double seconds = 0;
  size_t core_nodes = 0;  // after the reductions
};

/// Exact reductions; then elimination of all nodes if the tables stay small; else bounds by message
/// passing, solutions by local search and the removal of what the gap between them rules out, in
/// turns; then HiGHS on what is left. Memory is one constraint per time step that matters, priced
/// in the bounds. The result depends on the clock only if it runs out; pure otherwise.
SolveResult solve_ilp(const Problem& problem, const SolveOptions& options);

/// Exact reductions; prices of memory by message passing (planner/contest/price_search.h), which
/// also give the bound; a solution decoded and repaired under them; then neighbourhoods
/// (planner/contest/core_search.h): the strategies that the prices or the best solutions speak for
/// are searched by regions of up to some hundred nodes, which bucket elimination and tree search
/// solve exactly, or nearly, while the rest stays (planner/contest/region_search.h). In between,
/// strategies that the bound excludes go, and with `prove` a core that is small by then is given to
/// HiGHS. With a node budget that ends before the seconds do, deterministic.
SolveResult solve_lns(const Problem& problem, const SolveOptions& options);

/// Exact reductions, then MetaDist's Algorithm 2 (section 3.4.2): node after node in their order,
/// the cheapest candidates are kept. Candidates differ in the choices that later nodes look at or
/// in what they hold; one that with the least bytes of all later nodes cannot fit is not kept.
/// Widths from 8 up to beam_width; no bound. Deterministic unless time runs out.
SolveResult solve_beam(const Problem& problem, const SolveOptions& options);

/// The solvers by name (kSolvers): "ilp+lns" and "beam+lns" go on from the first one's solution;
/// auto is lns that hands a small core to the integer program, and keeps the best.
SolveResult solve(const Problem& problem, SolverKind solver, const SolveOptions& options);

}  // namespace shardrun
