// The core of a Problem as a mixed-integer program, solved by HiGHS.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/solver/deadline.h"
#include "planner/solver/problem.h"
#include "planner/solver/solver.h"

namespace shardrun {

struct MipResult {
  std::optional<Solution> solution;
  double bound = -kInfeasible;
  bool optimal = false, infeasible = false;
};

/// Number of edge variables that the program would have (pairs that are allowed).
double mip_size(const Problem& problem);

/// Variables: x[i,a] in {0,1}, one per strategy, and y[e,a,b] in [0,1], one per allowed pair of an
/// edge (the marginal polytope's local relaxation, as in Alpa, section 5.1, but y continuous):
///   sum_a x[i,a] = 1     sum_b y[e,a,b] = x[from,a]     sum_a y[e,a,b] = x[to,b]
///   for each time that matters: sum of bytes <= limit
/// `times` (indices into FlatProblem's kept times) have their memory rows from the beginning,
/// others when a solution breaks them. `start` and its cost cut the search off. One thread, which
/// asks the deadline in all of HiGHS' loops. Of `options` the seed and the gap count.
MipResult solve_mip(const Problem& problem, const Solution* start, const Deadline& deadline,
                    const SolveOptions& options, const std::vector<size_t>& times = {});

std::string highs_version();  // "1.11.0"

}  // namespace shardrun
