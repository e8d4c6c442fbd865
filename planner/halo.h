// Halos: from a rule's windows, blocks and rows to the exchanges of a node, and what they cost.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graph/node_plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// Everything replicated.
NodePlan replicated_node(std::span<const TensorType> in, std::span<const TensorType> out);

/// Adds what the option does along one more axis: cuts, windows, blocks and rows. The windows are
/// of the option's first plainly cut dim, results before operands.
void place(NodePlan& plan, const std::vector<Placement>& in, const std::vector<Placement>& out,
           int axis);

/// Is all that the option cuts still cut by the same axes, after all axes have been placed? Chunks
/// that another option cuts on one side only do not lie above each other any more: 13 rows over 2
/// and 2 are 4, 3, 4, 2, and rows 7 and 8 of them are not within the second half of 13 over 2.
bool cuts_agree(const NodePlan& plan, const SpmdRule::Option& option);

/// Can the windows and blocks that several axes' options have placed stand together? Not if a dim
/// has two windows, if its axes are not those of the dim that the windows are of or that numbers
/// its rows, or if what is in blocks or has named rows has another dim in windows, blocks or rows.
bool halos_agree(const NodePlan& plan);

/// The named rows of operand or result `index`; null if it has none.
const Rows* rows_of(const NodePlan& plan, bool result, int index);

/// Is the dim taken or made in windows, or part of blocks? Its chunks may then be empty.
bool is_exchanged(const NodePlan& plan, const NodeDim& at);

/// What brings operand `index` into the windows that the node reads, or result `index` from the
/// windows or blocks that it makes into chunks, as `rank` runs it. nullopt where chunks are what is
/// read or made, on every rank.
std::optional<Collective> exchange_of(const NodePlan& plan, const std::vector<Shape>& in,
                                      const std::vector<Shape>& out, bool result, int index,
                                      const Mesh& mesh, int64_t rank);

/// What a node with named rows needs before it: its numbers made to count the rank's own and named
/// rows, and the routing of these (Collective). One serves all nodes with the same numbers and
/// bounds. nullopt: it has none.
std::optional<Collective> route_of(const NodePlan& plan, const std::vector<Shape>& in,
                                   const std::vector<Shape>& out, const Mesh& mesh, int64_t rank);
double route_seconds(const NodePlan& plan, std::span<const TensorType> in,
                     std::span<const TensorType> out, const Mesh& mesh, const Cluster& cluster);

/// Time of all of a node's exchanges: of the rank that gets (or gives) the most, the messages'
/// latency, the bytes over the slowest of the axes, and packing through memory. Without its
/// routing, which other nodes may share.
double exchange_seconds(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, const Mesh& mesh, const Cluster& cluster);
/// The part of it that is for one operand or result.
double exchange_seconds(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, bool result, int index, const Mesh& mesh,
                        const Cluster& cluster);

/// Local types of operands and results of the rank with the largest: an image's inner ranks have
/// halos on both sides.
struct NodeTypes {
  std::vector<TensorType> in, out;
};
NodeTypes largest_types(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, const Mesh& mesh);

}  // namespace shardrun
