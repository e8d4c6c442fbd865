// near_solutions: solutions that cost little more than the cheapest, and differ where much is
// spent.
#pragma once

#include <vector>

#include "planner/solver/factored_problem.h"

namespace shardrun {

struct NearOptions {
  double spare = 0.01;     // relative: what costs so much more than the cheapest is not near
  double most_gap = 0.05;  // relative: where more is open, bounds say too little about what is near
  double gap = 1e-3;       // relative: what comes so close to its bound is good enough
  int tries = 16;          // choices that may be near
  double seconds = 0.3;    // of work (planner/solver/deadline.h)
};

/// Choices that `cheapest` does not make are tried, those of the nodes that cost most first. Of
/// each the cheapest solution that is found with it, if it is near. What one of them chooses is not
/// tried again. So many nodes change at once, as no descent from node to node does. Memory is no
/// matter here. Deterministic.
std::vector<Solution> near_solutions(const FactoredProblem& problem, const Solution& cheapest,
                                     const NearOptions& options = {});

}  // namespace shardrun
