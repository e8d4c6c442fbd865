// Passing roles on from operands to results.
#include "planner/schedule/roles.h"

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

StepRoles step_roles(const Graph& graph) {
  StepRoles out;
  out.of_batch = depends_on_batch(graph);
  out.of_weights = made_of_weights(graph);
  const size_t values = graph.values().size(), nodes = graph.nodes().size();
  out.forward.assign(nodes, false);
  std::vector<bool> needed(values, false);
  if (graph.loss != kNoValue) {
    needed[at(graph.loss)] = true;
  } else {  // a forward pass alone
    for (ValueId id : graph.outputs) needed[at(id)] = true;
  }
  for (size_t n = nodes; n-- > 0;) {
    const Node& node = graph.nodes()[n];
    out.forward[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                                 [&](ValueId id) { return needed[at(id)]; });
    if (!out.forward[n]) continue;
    for (ValueId in : node.inputs) needed[at(in)] = true;
  }
  out.gradients.assign(values, false);
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::update) continue;
    for (ValueId in : node.inputs) {
      const Value& value = graph.value(in);
      out.gradients[at(in)] =
          value.role == Role::computed && graph.node(value.producer).phase == Phase::micro;
    }
  }
  out.updates.assign(nodes, false);
  out.accumulates.assign(nodes, false);
  for (const auto& [held, next] : graph.updates) {
    if (graph.value(next).role != Role::computed) continue;
    const NodeId maker = graph.value(next).producer;
    if (graph.zeroed_each_step.count(held) > 0) {
      out.accumulates[at(maker)] = true;
    } else if (graph.node(maker).phase == Phase::update) {
      out.updates[at(maker)] = true;
    }
  }
  return out;
}

}  // namespace shardrun
