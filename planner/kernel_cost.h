// What a kernel costs.
#pragma once

#include <span>

#include "graph/graph.h"
#include "planner/cluster.h"

namespace shardrun {

/// Roofline: max(FLOPs / peak, bytes / bandwidth) + latency, on local types.
double kernel_seconds(const Node& node, std::span<const TensorType> in,
                      std::span<const TensorType> out, const Cluster& cluster);

}  // namespace shardrun
