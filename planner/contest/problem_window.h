// A Problem with only some of its nodes' strategies.
#pragma once

#include <vector>

#include "planner/solver/problem.h"

namespace shardrun {

/// Example: of a node with strategies 0 to 4, keep {1, 3}: strategy 1 of the window's node is the
/// whole's 3. Every node must keep one.
class ProblemWindow {
 public:
  /// keep: per node and strategy.
  ProblemWindow(const Problem& whole, const std::vector<std::vector<bool>>& keep);

  const Problem& problem() const { return problem_; }
  Solution to_whole(const Solution& solution) const;
  /// Every choice must have been kept.
  Solution from_whole(const Solution& solution) const;

 private:
  Problem problem_;
  std::vector<std::vector<int>> kept_;  // per node: strategies of the whole, ascending
};

}  // namespace shardrun
