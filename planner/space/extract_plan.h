// extract_plan: the Plan that a solution of the joint Problem says.
#pragma once

#include <vector>

#include "graph/plan.h"
#include "planner/space/search_space.h"

namespace shardrun {

/// A joint Problem, with all that its choices are about; it must outlive this.
struct PlanContext {
  const Graph& graph;
  const Mesh& mesh;
  const Folding& folding;
  const SearchSpace& space;
  JointProblem& joint;  // of that space
  ReshardTimes& times;  // of that mesh

  /// That a solution takes for a class.
  const Strategy& chosen(int item_class, const Solution& solution) const {
    const auto c = static_cast<size_t>(item_class);
    return space.strategies[c][static_cast<size_t>(solution[c])];
  }
};

/// Shardings, exchanges and seconds of a solution. Its bytes and the names in it (of the planner,
/// of what is computed again) are left to the caller. `share`: a copy that one reader wants serves
/// the others too.
Plan extract_plan(const PlanContext& problem, const Solution& solution, bool share);

/// Of each node in a step under a solution, without what brings its operands to it.
std::vector<double> node_seconds(const PlanContext& problem, const Solution& solution);

}  // namespace shardrun
