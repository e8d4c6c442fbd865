// Solutions that a search can start from.
#pragma once

#include <optional>

#include "planner/solver/factored_problem.h"
#include "planner/space/search_space.h"

namespace shardrun {

/// About the cheapest of those that make no other choices. nullopt: there is none.
std::optional<Solution> cheapest_of(const FactoredProblem& problem, const Kept& kept);

/// The same where nothing is cut that can be whole. `problem`: of build_problem for this space.
std::optional<Solution> least_cut(const FactoredProblem& problem, const SearchSpace& space);

}  // namespace shardrun
