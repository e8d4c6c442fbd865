// The pool of strategies of a mesh with many axes: from plans of meshes with neighbours joined.
#pragma once

#include <functional>

#include "planner/planner.h"

namespace shardrun {

/// Over many axes strategies are too many to list. Plans of meshes with fewer axes hold here as
/// they are (planner/meshes/merged_axes.h), and a search may combine them. Axes of which a
/// planner's name and tactics ask different things are not joined; requests are left to the search.
/// Empty: three axes or fewer, or none that may be joined. `add_time`: called with what each search
/// took. Throws as plan_shardings does.
StrategyPool merged_pool(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                         const PlanOptions& options, RuleCache& rules,
                         const std::function<void(const PlanReport&)>& add_time);

}  // namespace shardrun
