// Transposes of dims of 1, and expands in front of element-wise ops.
#include "graph/passes/movement.h"

#include <algorithm>

#include "graph/ops/elementwise.h"
#include "graph/ops/gradients.h"
#include "graph/passes/fuse.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"

namespace shardrun {

bool moves_only_ones(const Shape& shape, const std::vector<int64_t>& perm) {
  std::vector<int64_t> others = perm;
  std::erase_if(others, [&](int64_t d) { return shape[static_cast<size_t>(d)] == 1; });
  return std::is_sorted(others.begin(), others.end());
}

int reshape_transposes(Graph& graph) {
  int count = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op != "transpose" ||
        !moves_only_ones(graph.type(node.inputs[0]).shape, node.attrs.ints("perm")))
      continue;
    node.op = "reshape";
    node.attrs = {{"shape", graph.type(node.outputs[0]).shape}};
    ++count;
  }
  return count;
}

int sink_expands(Graph& graph) {
  int count = 0;
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];                                // a copy: the graph grows
    if (!is_elementwise(node.op) || node.op == "gelu_grad") continue;  // which wants equal shapes
    std::vector<ValueId> inputs = node.inputs;
    Shape shape;
    for (ValueId& id : inputs) {
      const Node* expand = made_by(graph, id, "expand");
      if (expand != nullptr && expand->phase == node.phase) id = expand->inputs[0];
      shape = broadcast_shape(shape, graph.type(id).shape);
    }
    if (inputs == node.inputs) continue;
    const Shape wide = graph.type(node.outputs[0]).shape;
    if (shape == wide) {
      graph.node(static_cast<NodeId>(n)).inputs = inputs;
    } else {
      graph.phase = node.phase;
      const ValueId narrow = graph.add(node.op, inputs, node.attrs, node.name + "/narrow");
      graph.phase = Phase::micro;
      Node& expand = graph.node(static_cast<NodeId>(n));
      expand.op = "expand";
      expand.attrs = {{"shape", wide}};
      expand.inputs = {narrow};
    }
    ++count;
  }
  if (count > 0) sort_nodes(graph);  // what is narrow was appended
  remove_dead_nodes(graph);
  return count;
}

void remove_movement(Graph& graph) {
  reshape_transposes(graph);
  sink_expands(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op == "identity") node.attrs = {};
  }
  remove_no_ops(graph);
}

}  // namespace shardrun
