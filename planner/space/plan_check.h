// Plan check: whether a plan from a file runs every node as the node's discovered rule allows.
#pragma once

#include "graph/plan.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// A plan of the right form can still compute something else. A sum over the cut batch leaves
/// "[] partial(sum: data)"; call it "[]", and nothing adds the ranks' shards up. So each node's
/// NodePlan must be one that options of its rule, one along each axis, compose, whatever bounds its
/// rows have and whether or not a rank is left without a part. Throws invalid_input naming the
/// node's fields that differ from what comes nearest, their values, and what that has there. `plan`
/// has passed check_plan.
void check_strategies(const Plan& plan, const Graph& graph, RuleCache& rules);

}  // namespace shardrun
