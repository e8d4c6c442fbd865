// Placing: a rule's placements along mesh axes made into a node's plan.
#pragma once

#include <span>
#include <vector>

#include "graph/node_plan.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// Everything replicated.
NodePlan replicated_node(std::span<const TensorType> in, std::span<const TensorType> out);

/// Adds what the option does along one more axis: cuts, windows, blocks and rows. The windows are
/// of the option's first plainly cut dim, results before operands.
void place(NodePlan& plan, const std::vector<Placement>& in, const std::vector<Placement>& out,
           int axis);

/// Is all that the option cuts still cut by the same axes, after all axes have been placed? Shards
/// that another option cuts on one side only do not lie above each other any more: 13 rows over 2
/// and 2 are 4, 3, 4, 2, and rows 7 and 8 of them are not within the second half of 13 over 2.
bool cuts_agree(const NodePlan& plan, const SpmdRule::Option& option);

/// Can the windows and blocks that several axes' options have placed stand together? Not if a dim
/// has two windows, if its axes are not those of the dim that the windows are of or that numbers
/// its rows, or if what is in blocks or has named rows has another dim in windows, blocks or rows.
bool halos_agree(const NodePlan& plan);

}  // namespace shardrun
