// Node by node, those again whose neighbours have changed.
#include "planner/solver/descent/coordinate_descent.h"

#include <algorithm>
#include <numeric>

namespace shardrun {

EdgeCosts::EdgeCosts(const FactoredProblem& problem) : first_(problem.nodes.size() + 1, 0) {
  for (const FactoredProblem::Edge& edge : problem.edges) {
    ++first_[at(edge.from) + 1];
    ++first_[at(edge.to) + 1];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  edges_.resize(first_.back());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (const FactoredProblem::Edge& edge : problem.edges)
    edges_[next[at(edge.from)]++] = edges_[next[at(edge.to)]++] = &edge;
}

void descend(const FactoredProblem& problem, const EdgeCosts& edge_costs, Solution& solution,
             const std::vector<std::vector<double>>* prices) {
  constexpr int kMostRounds = 50;   // over all nodes
  constexpr double kExact = 1e-12;  // relative: a gain that is no more is rounding
  std::vector<bool> stale(problem.nodes.size(), true);
  std::vector<double> cost;
  for (int round = 0; round < kMostRounds; ++round) {
    bool changed = false;
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      if (!stale[i]) continue;
      stale[i] = false;
      cost = problem.nodes[i].cost;
      if (prices != nullptr) {
        for (size_t a = 0; a < cost.size(); ++a) cost[a] += (*prices)[i][a];
      }
      edge_costs.add(
          i, solution, [](size_t a) { return a; }, cost);
      const auto best = std::min_element(cost.begin(), cost.end());
      if (!(*best < cost[at(solution[i])] * (1 - kExact))) continue;
      solution[i] = static_cast<int>(best - cost.begin());
      changed = true;
      for (const FactoredProblem::Edge* edge : edge_costs.edges(i))
        stale[at(edge->from)] = stale[at(edge->to)] = true;
      stale[i] = false;
    }
    if (!changed) return;
  }
}

}  // namespace shardrun
