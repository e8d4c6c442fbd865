// Transposes of dims of 1.
#include "graph/passes/movement.h"

#include <algorithm>

#include "graph/passes/fuse.h"

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

void remove_movement(Graph& graph) {
  reshape_transposes(graph);
  remove_no_ops(graph);
}

}  // namespace shardrun
