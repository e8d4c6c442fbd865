// Seconds of what a node exchanges with other ranks (graph/node_exchanges.h).
#pragma once

#include <span>

#include "graph/node_plan.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// Of finding out which ranks have the rows that a node's numbers name (route_of); 0 if none are
/// named.
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

}  // namespace shardrun
