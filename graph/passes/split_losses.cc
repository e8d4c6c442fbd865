// Losses over classes as the steps that a mesh needs.
#include "graph/passes/rebuild.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

void split(Rebuild& r, const Node& node) {
  Graph& g = r.to;
  const ValueId logits = r.at(node.inputs[0]), labels = r.at(node.inputs[1]);
  const Shape shape = g.type(logits).shape;
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  Attrs sums = node.attrs;
  sums.set("classes", shape.back());
  g.phase = node.phase;
  const ValueId top =
      g.add("reduce_max", {logits},
            {{"axes", std::vector<int64_t>{last}}, {"keepdims", int64_t{0}}}, node.name + "/top");
  const ValueId all = g.add("cross_entropy_sums", {logits, labels, top}, sums, node.name + "/sums");
  const std::vector<ValueId> made =
      g.add_node("cross_entropy_join", {labels, top, all}, node.attrs, node.name);
  for (size_t i = 0; i < made.size(); ++i) r.copied[node.outputs[i]] = made[i];
  g.phase = Phase::micro;
}

}  // namespace

bool takes_labels(const Node& node) {
  return node.op == "cross_entropy" || node.op == "cross_entropy_sums";
}

void split_losses(Graph& graph) {
  graph = rebuild(graph, [](Rebuild& r, const Node& node) {
    if (node.op == "cross_entropy") return split(r, node);
    r.copy(node);
  });
}

}  // namespace shardrun
