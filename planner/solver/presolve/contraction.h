// Contraction: a FactoredProblem without the nodes whose choice another node's decides.
#pragma once

#include <optional>
#include <vector>

#include "planner/solver/factored_problem.h"

namespace shardrun {

/// A weight lies as its update leaves it, and so does the optimizer's state: where each choice of a
/// node allows one of its neighbour's, the two are one node. Solutions cost the same.
///
///     const Contraction less(problem);
///     const std::optional<Narrowed> found = ... less.problem() ...
///     const Solution solution = less.expanded(*found->solution);
class Contraction {
 public:
  explicit Contraction(const FactoredProblem& problem);

  const FactoredProblem& problem() const { return problem_; }
  /// Of the whole problem's node: which node of problem() decides it, and its choice by that one's.
  int node(int whole) const { return node_[static_cast<size_t>(whole)]; }
  const std::vector<int>& choices(int whole) const { return choices_[static_cast<size_t>(whole)]; }

  /// A solution of the whole problem from one of problem(), and the reverse; nullopt where that has
  /// none, because it is forbidden.
  Solution expanded(const Solution& solution) const;
  std::optional<Solution> contracted(const Solution& whole) const;

 private:
  FactoredProblem problem_;
  std::vector<int> node_;
  std::vector<std::vector<int>> choices_;
};

}  // namespace shardrun
