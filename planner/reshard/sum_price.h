// What the sum of a gradient over ranks costs a step, which may sum others by the same call, or go
// on meanwhile.
#pragma once

#include <map>
#include <vector>

#include "graph/graph.h"
#include "graph/plan.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct SumPrice {
  /// Bytes of what one all_reduce call may sum, this value included; 0: it has its own call
  /// (runtime/program/combine_collectives.h).
  double call = 0;
  /// Of the seconds of its resharding, the fraction that is not hidden beside kernels.
  double exposed = 1;
  friend auto operator<=>(const SumPrice&, const SumPrice&) = default;
};

/// By value. Of gradients, which the update alone reads: nothing waits for them before all are
/// there. Collectives::together: one call may sum all of a type. Collectives::apart: `exposed`.
std::vector<SumPrice> sum_prices(const Graph& graph, const Cluster& cluster, double exposed);

/// Bytes of what one all_reduce call over certain mesh axes sums, by the axes in their order.
using CallBytes = std::map<std::vector<int>, double>;

/// What is known of these calls under a plan: gradients of a type that are partial over the same
/// axes are one call, and others are not.
class SumCalls {
 public:
  SumCalls(const Graph& graph, const Plan& plan, const Cluster& cluster);
  /// Those that may sum this value, too. nullptr: it has its own. They live as long as this.
  const CallBytes* of(ValueId value) const { return of_[static_cast<size_t>(value)]; }

 private:
  std::map<DType, CallBytes> calls_;
  std::vector<const CallBytes*> of_;  // by value
};

}  // namespace shardrun
