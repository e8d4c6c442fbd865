// Sums over ranks that one call may do together, for their price.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// By value: the bytes of what one all_reduce call may sum together with it, itself included; 0: it
/// is summed by a call of its own (runtime/program/combine_collectives.h). Together go gradients:
/// what the update alone reads, which nothing waits for before all of it is there. All 0 on a
/// cluster whose ranks make a call for each value.
std::vector<double> call_bytes(const Graph& graph, const Cluster& cluster);

}  // namespace shardrun
