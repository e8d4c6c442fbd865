// What a node exchanges with other ranks, by its plan's windows, blocks and rows.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graph/node_plan.h"
#include "graph/program.h"

namespace shardrun {

/// The named rows of operand or result `index`; null if it has none.
const Rows* rows_of(const NodePlan& plan, bool result, int index);

/// Is the dim taken or made in windows, or part of blocks? Its shards may then be empty.
bool is_exchanged(const NodePlan& plan, const NodeDim& at);

/// What brings operand `index` into the windows that the node reads, or result `index` from the
/// windows or blocks that it makes into shards, as `rank` runs it. nullopt where shards are what is
/// read or made, on every rank.
std::optional<Collective> exchange_of(const NodePlan& plan, const std::vector<Shape>& in,
                                      const std::vector<Shape>& out, bool result, int index,
                                      const Mesh& mesh, int64_t rank);

/// What a node with named rows needs before it: its numbers made to count the rank's own and named
/// rows, and the routing of these (Collective). One serves all nodes with the same numbers and
/// bounds. nullopt: it has none.
std::optional<Collective> route_of(const NodePlan& plan, const std::vector<Shape>& in,
                                   const std::vector<Shape>& out, const Mesh& mesh, int64_t rank);

/// Coordinates along `axes`, 0 along all others: every one where there are few, else the ends and
/// the middle of each axis. Ranks between do as their neighbours.
std::vector<std::vector<int64_t>> sample_coordinates(const std::vector<int>& axes,
                                                     const Mesh& mesh);

/// Local types of operands and results of the rank with the largest: an image's inner ranks have
/// halos on both sides.
struct NodeTypes {
  std::vector<TensorType> in, out;
};
NodeTypes largest_types(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, const Mesh& mesh);

}  // namespace shardrun
