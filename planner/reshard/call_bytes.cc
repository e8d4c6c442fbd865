// What only the update reads, by type of element.
#include "planner/reshard/call_bytes.h"

#include <map>

#include "base/at.h"

namespace shardrun {

std::vector<double> call_bytes(const Graph& graph, const Cluster& cluster) {
  std::vector<double> out(graph.values().size(), 0);
  if (cluster.collectives != Collectives::together) return out;
  std::vector<bool> is_gradient(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::update) continue;
    for (ValueId id : node.inputs) {
      const Value& value = graph.value(id);
      is_gradient[at(id)] = value.role == Role::computed
                                ? graph.node(value.producer).phase != Phase::update
                                : graph.zeroed_each_step.count(id) > 0;
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::update) continue;
    for (ValueId id : node.inputs) {
      if (graph.zeroed_each_step.count(id) == 0) is_gradient[at(id)] = false;
    }
  }
  for (const auto& [name, id] : graph.metrics) is_gradient[at(id)] = false;
  std::map<DType, double> sums;
  for (size_t v = 0; v < out.size(); ++v) {
    const TensorType& type = graph.values()[v].type;
    if (is_gradient[v]) sums[type.dtype] += static_cast<double>(byte_size(type));
  }
  for (size_t v = 0; v < out.size(); ++v) {
    if (is_gradient[v]) out[v] = sums[graph.values()[v].type.dtype];
  }
  return out;
}

}  // namespace shardrun
