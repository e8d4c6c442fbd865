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

/// Does every rank get something of a dim that `axes` cut one after the other? 5 over axes of 2 and
/// 2: 3, 2, then 2, 1, 1, 1.
bool leaves_none_empty(int64_t size, const std::vector<int>& axes, const Mesh& mesh);

/// Every combination of one option (or replication) per mesh axis, less those that leave a rank
/// without a part of a dim (unless `leave_empty`) and those that another strategy with the same in
/// and out beats. Axes that cut one dim stand in mesh order. Deterministic order; the first is all
/// replicated.
std::vector<Strategy> enumerate_strategies(const Node& node, std::span<const TensorType> in,
                                           std::span<const TensorType> out, const SpmdRule& rule,
                                           const Mesh& mesh, const Cluster& cluster,
                                           bool leave_empty = false);

}  // namespace shardrun
