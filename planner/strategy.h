// Strategy: one way to run one node on the whole mesh, all axes jointly.
#pragma once

#include <vector>

#include "planner/cluster.h"
#include "planner/discovery.h"

namespace shardrun {

struct Strategy {
  std::vector<Sharding> in, out;
  double seconds = 0;  // the slowest rank's local kernel
};

/// Every combination of one option (or replication) per mesh axis, less those that cut a dim into
/// more parts than it has elements and those that another strategy with the same in and out beats.
/// Axes that cut one dim stand in mesh order. Deterministic order; the first is all replicated.
std::vector<Strategy> enumerate_strategies(const Node& node, std::span<const TensorType> in,
                                           std::span<const TensorType> out, const SpmdRule& rule,
                                           const Mesh& mesh, const Cluster& cluster);

}  // namespace shardrun
