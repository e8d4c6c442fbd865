// Elimination: exact minimisation of a Problem without memory, one node after the other.
#pragma once

#include <functional>
#include <optional>

#include "planner/solver/problem.h"

namespace shardrun {

struct EliminationLimits {
  double table_entries = 2e6;  // of one table
  double work = 4e8;           // additions in all
  std::function<bool()> late;  // asked often; may be null
};

/// Bucket elimination (Dechter 1999, "Bucket elimination: a unifying framework for reasoning"): a
/// node goes out with the factors that mention it, and leaves a table over its neighbours. The next
/// is the one with the smallest table. Memory is ignored. nullopt if a table or the work would
/// exceed the limits (found out beforehand, cheaply), if it is late, or if nothing is feasible.
std::optional<Solution> eliminate_all(const Problem& problem, const EliminationLimits& limits = {});

}  // namespace shardrun
