// Repair: of a solution that claims too much memory one that fits, a choice at a time.
#pragma once

#include <vector>

#include "planner/solver/descent/coordinate_descent.h"
#include "planner/solver/memory_use.h"

namespace shardrun {

/// Prices of memory leave solutions above the limit and below it, by more than one choice makes up.
/// What is a little above is changed where that costs the least for the bytes that it takes away.
class Repair {
 public:
  /// Both must outlive this. `memory` is of the problem's claims.
  Repair(const FactoredProblem& problem, MemoryUse& memory);

  /// Changes choices until nothing exceeds the limit, each time the one that takes away the most
  /// bytes above it per second, and then those that are cheaper otherwise and fit. `allowed`: the
  /// choices of each node. False: no choice takes any away, or too many would have to change.
  bool fit(Solution& solution, const Kept& allowed);

 private:
  /// Costs of a node's allowed choices, given the others.
  void price(int node, const Solution& solution, const std::vector<int>& allowed);
  bool take_one(Solution& solution, const Kept& allowed);
  void descend(Solution& solution, const Kept& allowed);
  void change(Solution& solution, int node, int to);

  const FactoredProblem& problem_;
  MemoryUse& memory_;
  const EdgeCosts edge_costs_;
  std::vector<double> cost_;  // by allowed choice
};

}  // namespace shardrun
