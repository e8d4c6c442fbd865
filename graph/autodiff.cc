// Reverse-mode differentiation of a Graph.
#include "graph/autodiff.h"

#include <algorithm>

namespace shardrun {
namespace {

/// Marks values that depend on one of `wrt`.
std::vector<bool> depends_on(const Graph& graph, std::span<const ValueId> wrt) {
  std::vector<bool> depends(graph.values().size(), false);
  for (ValueId id : wrt) depends[static_cast<size_t>(id)] = true;
  for (const Node& node : graph.nodes()) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return depends[static_cast<size_t>(id)]; });
    if (!any) continue;
    for (ValueId id : node.outputs) {
      if (is_float(graph.type(id).dtype)) depends[static_cast<size_t>(id)] = true;
    }
  }
  return depends;
}

/// A value of `wrt` that a node's operands depend on.
ValueId source_of(const Graph& graph, const Node& node, const std::vector<bool>& depends,
                  std::span<const ValueId> wrt) {
  const Node* at = &node;
  while (true) {
    const auto operand = std::find_if(at->inputs.begin(), at->inputs.end(),
                                      [&](ValueId id) { return depends[static_cast<size_t>(id)]; });
    if (std::find(wrt.begin(), wrt.end(), *operand) != wrt.end()) return *operand;
    at = &graph.node(graph.value(*operand).producer);
  }
}

}  // namespace

std::vector<ValueId> differentiate(Graph& graph, ValueId loss, std::span<const ValueId> wrt) {
  SR_REQUIRE(is_float(graph.type(loss).dtype) && graph.type(loss).shape.empty(), invalid_input,
             "loss '", graph.value(loss).name, "' is ", graph.type(loss),
             ", wanted a floating scalar");
  const std::vector<bool> wanted = depends_on(graph, wrt);
  std::vector<ValueId> grads(graph.values().size(), kNoValue);
  const auto forward_nodes = static_cast<NodeId>(graph.nodes().size());

  auto accumulate = [&](ValueId value, ValueId grad) {
    SR_REQUIRE(graph.type(grad).shape == graph.type(value).shape, internal, "gradient of '",
               graph.value(value).name, "' is ", graph.type(grad), ", the value is ",
               graph.type(value));
    ValueId& slot = grads[static_cast<size_t>(value)];
    if (slot == kNoValue) {
      slot = grad;
      return;
    }
    if (graph.type(slot).dtype != graph.type(grad).dtype) {  // sum in the wider of the two
      const std::string wide(to_string(
          graph.type(slot).dtype == DType::bf16 ? graph.type(grad).dtype : graph.type(slot).dtype));
      if (to_string(graph.type(slot).dtype) != wide)
        slot = graph.add("cast", {slot}, {{"to", wide}});
      if (to_string(graph.type(grad).dtype) != wide)
        grad = graph.add("cast", {grad}, {{"to", wide}});
    }
    slot = graph.add("add", {slot, grad}, {}, kGradientPrefix + graph.value(value).name);
  };

  if (wanted[static_cast<size_t>(loss)]) {
    grads[static_cast<size_t>(loss)] =
        graph.add("fill", {},
                  {{"shape", std::vector<int64_t>{}},
                   {"dtype", std::string(to_string(graph.type(loss).dtype))},
                   {"value", 1.0}},
                  std::string(kGradientPrefix) + "loss");
  }
  for (NodeId n = forward_nodes; n-- > 0;) {
    const Node node = graph.node(n);
    std::vector<ValueId> out_grads;
    std::vector<bool> needs;
    for (ValueId id : node.outputs) out_grads.push_back(grads[static_cast<size_t>(id)]);
    for (ValueId id : node.inputs) needs.push_back(wanted[static_cast<size_t>(id)]);
    const bool flows =
        std::any_of(out_grads.begin(), out_grads.end(), [](ValueId id) { return id != kNoValue; });
    if (!flows || std::find(needs.begin(), needs.end(), true) == needs.end()) continue;
    const OpDef& op = op_def(node.op);
    SR_REQUIRE(op.gradient != nullptr, unsupported, node.op, " '", node.name,
               "': has no gradient, and the loss depends through it on '",
               graph.value(source_of(graph, node, wanted, wrt)).name,
               op.foreign ? "'; give the op one (UserOp::gradient), or do not train that"
                          : "'; do not train that (--freeze)");
    GradientContext context{graph, node, out_grads, needs};
    const std::vector<ValueId> in_grads = op.gradient(context);
    SR_REQUIRE(in_grads.size() == node.inputs.size(), internal, node.op, ": gradient rule gave ",
               in_grads.size(), " gradients for ", node.inputs.size(), " operands");
    for (size_t i = 0; i < in_grads.size(); ++i) {
      if (needs[i] && in_grads[i] != kNoValue) accumulate(node.inputs[i], in_grads[i]);
    }
  }
  std::vector<ValueId> result;
  for (ValueId id : wrt) result.push_back(grads[static_cast<size_t>(id)]);
  return result;
}

}  // namespace shardrun
