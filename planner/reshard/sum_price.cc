// What only the update reads, by type of element.
#include "planner/reshard/sum_price.h"

#include <map>

#include "base/at.h"

namespace shardrun {
namespace {

/// By value: made before the update, or added up from step to step, and read by nothing else.
std::vector<bool> gradients(const Graph& graph) {
  std::vector<bool> out(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::update) continue;
    for (ValueId id : node.inputs) {
      const Value& value = graph.value(id);
      out[at(id)] = value.role == Role::computed ? graph.node(value.producer).phase != Phase::update
                                                 : graph.zeroed_each_step.count(id) > 0;
    }
  }
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::update) continue;
    for (ValueId id : node.inputs) {
      if (graph.zeroed_each_step.count(id) == 0) out[at(id)] = false;
    }
  }
  for (const auto& [name, id] : graph.metrics) out[at(id)] = false;
  return out;
}

}  // namespace

std::vector<SumPrice> sum_prices(const Graph& graph, const Cluster& cluster, double exposed) {
  std::vector<SumPrice> out(graph.values().size());
  const std::vector<bool> is_gradient = gradients(graph);
  std::map<DType, double> bytes;
  for (size_t v = 0; v < out.size(); ++v) {
    const TensorType& type = graph.values()[v].type;
    if (is_gradient[v]) bytes[type.dtype] += static_cast<double>(byte_size(type));
  }
  for (size_t v = 0; v < out.size(); ++v) {
    if (!is_gradient[v]) continue;
    if (cluster.collectives == Collectives::together) {
      out[v].call = bytes[graph.values()[v].type.dtype];
    } else {
      out[v].exposed = exposed;
    }
  }
  return out;
}

}  // namespace shardrun
