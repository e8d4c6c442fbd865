// Every solution of a small problem: what brute force tries.
#pragma once

#include <algorithm>

#include "planner/solver/problem.h"

namespace shardrun::test {

/// Calls `visit` with every solution of a Problem, or of a FactoredProblem.
template <class AnyProblem, class Visit>
void each_solution(const AnyProblem& problem, const Visit& visit) {
  Solution solution(problem.nodes.size(), 0);
  while (true) {
    visit(solution);
    size_t i = 0;
    while (i < solution.size() && ++solution[i] == static_cast<int>(problem.nodes[i].cost.size()))
      solution[i++] = 0;
    if (i == solution.size()) return;
  }
}

/// Cost of the best that fits, kInfeasible if there is none.
inline double optimum(const Problem& problem) {
  double best = kInfeasible;
  each_solution(problem, [&](const Solution& solution) {
    best = std::min(best, evaluate(problem, solution).cost);
  });
  return best;
}

}  // namespace shardrun::test
