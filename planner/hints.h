// Hints: requests that are met where that costs nothing, and priced where it would.
#pragma once

#include <functional>

#include "planner/planner.h"

namespace shardrun {

inline constexpr int kMostSplits = 16, kMostPrices = 16;

/// A plan under the options, whose requests are all required. Throws as plan_shardings does.
using PlanUnder = std::function<Plan(const PlanOptions&, PlanReport&)>;

/// Plans with the hints among options.requests (those with a ? in front), by one rule for every
/// planner. First comes the plan without them. What it does anyway is followed. The other hints are
/// then required, all at once; if that plan takes no longer than the fastest so far, beyond the
/// gap that a search leaves (1e-4), they are followed. Else the first half of them is tried so
/// together with what is followed already, then the second, down to single hints. A hint that names
/// several values is followed for all of them or none. Where there are many (annotations of a whole
/// model), kMostSplits groups are halved, the others tried as they are.
///
/// Where a hint costs something, its price is what the plan without hints would take more if this
/// one were required: of the first kMostPrices that are not followed. Since followed ones cost
/// nothing, that is also how much longer the step gets if the ? is taken away.
///
/// Throws invalid_input where a hint is no request; that it contradicts something is none.
Plan plan_with_hints(const Graph& graph, const Mesh& mesh, const PlanOptions& options,
                     const PlanUnder& plan_under, PlanReport& report);

}  // namespace shardrun
