// Forbidden reshardings: those that memory has no capacity for, taken out of a joint Problem.
#pragma once

#include "planner/space/extract_plan.h"
#include "program/memory.h"

namespace shardrun {

/// What is too much at a node may be what is there for a moment in front of it: a value, the copy
/// that it is brought into, and staging. The claims know of one of the two. Forbids such
/// reshardings there, and of values of the same type wherever there are no more bytes besides the
/// claims. False if there are none that were allowed. `use`: of the arena under the solution's
/// plan; `limit`: of its bytes a rank.
bool forbid_reshardings(const PlanContext& problem, const Solution& solution, const ArenaUse& use,
                        int64_t limit);

}  // namespace shardrun
