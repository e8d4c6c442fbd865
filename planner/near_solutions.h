// near_solutions: solutions that cost little more than the cheapest, and differ where much is
// spent.
#pragma once

#include <vector>

#include "planner/solver/factored_problem.h"

namespace shardrun {

struct NearOptions {
  double spare = 0.01;     // relative: what costs so much more than the cheapest is not near
  double most_gap = 0.02;  // relative: where more is open, bounds say too little about what is near
  double gap = 1e-3;       // relative: a search that comes so close to its bound ends
  int tries = 16;          // searches with one choice made
  double seconds = 0.3;    // of work (planner/solver/deadline.h)
};

/// For some choices that `cheapest` does not make the cheapest solutions that are found with them:
/// of the nodes that cost most first. What one of them chooses is not tried again. A move of many
/// nodes at once is found so, that no descent from node to node makes. Memory is no matter here.
/// Deterministic.
std::vector<Solution> near_solutions(const FactoredProblem& problem, const Solution& cheapest,
                                     const NearOptions& options = {});

}  // namespace shardrun
