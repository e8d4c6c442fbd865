// Lowering: the steps of a Skeleton made from the nodes of a Graph.
#pragma once

#include <string>
#include <vector>

#include "planner/cost/cluster.h"
#include "program/partition/skeleton.h"

namespace shardrun {

/// When its phase ends, `persistent` (a value called `name`) holds what is in `next`.
struct HeldUpdate {
  BufferId persistent, next;
  std::string name;
};

/// Makes, in the order of the nodes, each one's kernel, the reshardings and exchanges that it needs
/// before it and those behind it; at the end of each phase the outputs, metrics and updates that
/// are of it. Returns the updates: nothing writes them into their persistent buffers yet.
std::vector<HeldUpdate> lower_nodes(Skeleton& skeleton, const Cluster& cluster);

}  // namespace shardrun
