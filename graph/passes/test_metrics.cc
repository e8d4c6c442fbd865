// A validation that measures the test as well.
#include <algorithm>

#include "graph/passes/training.h"

namespace shardrun {

void measure_test_too(Graph& graph, const std::vector<std::string>& targets) {
  std::map<ValueId, ValueId> twins;
  for (const std::string& target : targets) {
    const ValueId id = graph.find(target);
    twins[id] = graph.add_input(kTestPrefix + target, graph.type(id), Role::batch);
  }
  const auto twin = [&](ValueId id) {
    const auto it = twins.find(id);
    return it == twins.end() ? id : it->second;
  };
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) inputs.push_back(twin(id));
    if (inputs == node.inputs) continue;
    const std::vector<ValueId> results =
        graph.add_node(node.op, inputs, node.attrs, kTestPrefix + node.name);
    for (size_t r = 0; r < results.size(); ++r) twins[node.outputs[r]] = results[r];
  }
  const std::map<std::string, ValueId> metrics = graph.metrics;
  for (const auto& [name, id] : metrics) {
    if (twins.count(id) > 0) graph.metrics[kTestPrefix + name] = twins.at(id);
  }
}

}  // namespace shardrun
