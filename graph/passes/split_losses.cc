// Losses over classes as the steps that a mesh needs.
#include "graph/passes/rebuild.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

void split(Graph& g, NodeId id) {
  const Node node = g.node(id);
  const ValueId logits = node.inputs[0], labels = node.inputs[1];
  const Shape shape = g.type(logits).shape;
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  Attrs classes = node.attrs;
  classes.set("classes", shape.back());
  g.phase = node.phase;
  const ValueId top =
      g.add("reduce_max", {logits},
            {{"axes", std::vector<int64_t>{last}}, {"keepdims", int64_t{0}}}, node.name + "/top");
  const ValueId sums =
      g.add("cross_entropy_sums", {logits, labels, top}, classes, node.name + "/sums");
  g.phase = Phase::micro;
  g.node(id).op = "cross_entropy_join";
  g.node(id).inputs = {labels, top, sums};
}

}  // namespace

bool takes_labels(const Node& node) {
  return node.op == "cross_entropy" || node.op == "cross_entropy_sums";
}

void split_losses(Graph& graph) {
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    if (graph.nodes()[n].op == "cross_entropy") split(graph, static_cast<NodeId>(n));
  }
  sort_nodes(graph);
}

}  // namespace shardrun
