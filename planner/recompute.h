// Recomputation: the choice of results that the backward pass makes again, so that the rest fits.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/passes/liveness.h"
#include "graph/plan.h"

namespace shardrun {

/// Of values as a rank holds them under a plan.
ValueBytes local_bytes(const Graph& graph, const Plan& plan);

struct Recomputed {
  std::set<std::string> nodes;  // by name
  bool fits = false;            // so that no more bytes are alive than were wanted
};

/// Nodes to run again (graph/passes/recompute.h) so that at most `capacity` bytes of `bytes` are
/// ever alive; where that cannot be reached, what comes the nearest. `seconds`: of each node.
///
/// Greedy: of all reruns that save a value, which are of its node alone, or of it with those that
/// make its operands, and so on until nothing else has to be kept for it, the one that takes away
/// the most of what is above the capacity, over all nodes, per second; the same in all layers that
/// are alike at once. Then one after the other is dropped that is not needed after all. What is
/// alive is found exactly for every way that is looked at.
Recomputed choose_recomputed(const Graph& graph, const ValueBytes& bytes,
                             const std::vector<double>& seconds, int64_t capacity);

}  // namespace shardrun
