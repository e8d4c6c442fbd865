// Passing roles on from operands to results.
#include "planner/space/roles.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
std::vector<bool> depends_on_batch(const Graph& graph) {
  std::vector<bool> out(graph.values().size(), false);
  for (ValueId id : graph.with_role(Role::batch)) out[at(id)] = true;
  for (const Node& node : graph.nodes()) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return out[at(id)]; });
    for (ValueId id : node.outputs) out[at(id)] = any;
  }
  return out;
}

std::vector<bool> made_of_weights(const Graph& graph) {
  std::vector<bool> out(graph.values().size(), false);
  for (ValueId id : graph.with_role(Role::parameter)) out[at(id)] = true;
  for (const Node& node : graph.nodes()) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return out[at(id)]; });
    const bool all = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      return out[at(id)] || graph.value(id).role == Role::constant;
    });
    for (ValueId id : node.outputs) out[at(id)] = any && all && node.phase == Phase::micro;
  }
  return out;
}

}  // namespace shardrun
