// What sums over a dim that a mesh may cut, as the steps that this needs: losses over classes,
// attention over keys.
#include "graph/ops/attention.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

void split_loss(Graph& g, NodeId id) {
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

/// `kept` of the operands behind q, k and v: the mask, and the step of a dropout.
std::vector<ValueId> joined(std::vector<ValueId> first, const std::vector<ValueId>& rest,
                            size_t kept) {
  first.insert(first.end(), rest.begin() + 3, rest.begin() + 3 + static_cast<std::ptrdiff_t>(kept));
  return first;
}

void split_keys(Graph& g, NodeId id) {
  const Node node = g.node(id);
  const std::vector<ValueId>& in = node.inputs;
  const AttentionAttrs of = AttentionAttrs::of(node);
  Attrs sums = node.attrs;
  sums.set("keys", g.type(in[1]).shape[2]);
  Attrs scores = {{"scale", of.scale},
                  {"slope", of.slope},
                  {"causal", int64_t{of.causal}},
                  {"has_mask", int64_t{of.has_mask}},
                  {"q_offset", of.q_offset},
                  {"keys", g.type(in[1]).shape[2]}};
  g.phase = node.phase;
  const ValueId top = g.add("attention_top", joined({in[0], in[1]}, in, of.has_mask ? 1 : 0),
                            scores, node.name + "/top");
  const std::vector<ValueId> made =
      g.add_node("attention_sums", joined({in[0], in[1], in[2], top}, in, in.size() - 3), sums,
                 node.name + "/sums");
  g.phase = Phase::micro;
  g.node(id).op = "attention_join";
  g.node(id).attrs = {};
  g.node(id).inputs = {top, made[0], made[1]};
}

void split_all(Graph& graph, std::string_view op, void (*split)(Graph&, NodeId)) {
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    if (graph.nodes()[n].op == op) split(graph, static_cast<NodeId>(n));
  }
  sort_nodes(graph);
}

}  // namespace

bool takes_labels(const Node& node) {
  return node.op == "cross_entropy" || node.op == "cross_entropy_sums";
}

void split_losses(Graph& graph) { split_all(graph, "cross_entropy", split_loss); }

void split_attention(Graph& graph) { split_all(graph, "attention", split_keys); }

}  // namespace shardrun
