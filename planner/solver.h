// Solvers of a Problem behind one interface.
#pragma once

#include <optional>
#include <string>

#include "planner/problem.h"

namespace shardrun {

struct SolveOptions {
  double seconds = 10;        // give up improving after this
  uint64_t seed = 0;
  const Solution* start = nullptr;   // a known solution, feasible or not
};

struct SolveResult {
  std::optional<Solution> solution;  // nullopt: none found that fits
  double cost = kInfeasible;
  double lower_bound = 0;
  bool proven_infeasible = false;
  std::string solver;
  double seconds = 0;
};

/// Exact reductions, then HiGHS on what is left; memory as one constraint per time step that matters.
SolveResult solve_ilp(const Problem& problem, const SolveOptions& options);

}  // namespace shardrun
