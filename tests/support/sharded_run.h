// Runs a training Graph under a Plan on threads and gives back global tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/plan.h"
#include "planner/cost/cluster.h"

namespace shardrun::test {

using NamedTensors = std::map<std::string, Tensor>;

struct ShardedRun {
  std::vector<NamedTensors> outputs;  // per step: graph.outputs by value name, from rank 0
  std::vector<std::map<std::string, double>> metrics;  // per step
  NamedTensors persistent;  // after the last step, put together from all ranks
  std::vector<int64_t> predicted_bytes, allocated_bytes;
};

/// One step per element of `feeds` (global batch values by name), of which all its micro-batches
/// have the same; "lr" as given, "step" counts from 1. `cluster`: whose prices choose collectives.
/// Expects that each rank makes the calls that its Program has, of as many bytes, and no others.
ShardedRun run_sharded(const Graph& graph, const Plan& plan, const std::vector<NamedTensors>& feeds,
                       double lr, uint64_t seed = 0, const Cluster& cluster = host_cluster());

/// What one rank holds of a global tensor.
Tensor cut(const Tensor& global, const Box& box);

/// max |a - b| / max |b|, both over all elements; infinity where types differ.
double relative_difference(const Tensor& a, const Tensor& b);

}  // namespace shardrun::test
