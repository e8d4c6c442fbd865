// What a collective costs.
#pragma once

#include <span>

#include "graph/program.h"
#include "graph/sharding.h"
#include "planner/cluster.h"

namespace shardrun {

/// Time of one collective over `axes` of the mesh, from the bytes that a rank holds before and
/// after: ring algorithms, latency plus bytes over the slowest axis.
double collective_seconds(Collective::Kind kind, double bytes_before, double bytes_after,
                          std::span<const int> axes, const Mesh& mesh, const Cluster& cluster);

/// The same on the largest shard of a value.
double collective_seconds(Collective::Kind kind, const TensorType& type, const Sharding& before,
                          const Sharding& after, std::span<const int> axes, const Mesh& mesh,
                          const Cluster& cluster);

}  // namespace shardrun
