// What the sum of a gradient over ranks costs a step, which may sum others by the same call, or go
// on meanwhile.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct SumPrice {
  /// Bytes of what one all_reduce call may sum, this value included; 0: it has its own call
  /// (runtime/program/combine_collectives.h).
  double call = 0;
  /// Of the seconds of its resharding, the fraction that is not hidden behind kernels.
  double exposed = 1;
  friend auto operator<=>(const SumPrice&, const SumPrice&) = default;
};

/// By value. Of gradients, which the update alone reads: nothing waits for them before all are
/// there. Collectives::together: one call may sum all of a type. Collectives::apart: `exposed`.
std::vector<SumPrice> sum_prices(const Graph& graph, const Cluster& cluster, double exposed);

}  // namespace shardrun
