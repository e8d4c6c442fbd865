// Batch normalisation with the sum and the relu behind it.
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

struct Found {
  const Node* norm = nullptr;
  ValueId residual = kNoValue;
};

/// Used once, in the graph as it was when they were counted.
bool used_once(const std::vector<int>& uses, ValueId id) {
  return static_cast<size_t>(id) < uses.size() && uses[static_cast<size_t>(id)] == 1;
}

/// A plain batch_norm whose result nothing else uses.
const Node* sole_norm(const Graph& g, const std::vector<int>& uses, ValueId id) {
  const Node* norm = made_by(g, id, "batch_norm");
  const bool plain = norm != nullptr && used_once(uses, id) && norm->inputs.size() == 5 &&
                     norm->attrs.i("relu", 0) == 0;
  return plain ? norm : nullptr;
}

Found find_norm(const Graph& g, const std::vector<int>& uses, ValueId id) {
  if (const Node* norm = sole_norm(g, uses, id)) return {norm};
  const Node* add = used_once(uses, id) ? made_by(g, id, "add") : nullptr;
  for (size_t i = 0; add != nullptr && i < 2; ++i) {
    const Node* norm = sole_norm(g, uses, add->inputs[i]);
    const ValueId other = add->inputs[1 - i];
    if (norm != nullptr && g.type(other) == g.type(add->inputs[i])) return {norm, other};
  }
  return {};
}

}  // namespace

int recognise_batch_norm(Graph& graph) {
  int count = 0;
  const std::vector<int> uses = use_counts(graph);
  Replacer replacer(graph);
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node relu = graph.nodes()[n];
    if (relu.op != "relu") continue;
    const Found found = find_norm(graph, uses, relu.inputs[0]);
    if (found.norm == nullptr || found.norm->phase != relu.phase) continue;
    std::vector<ValueId> inputs = found.norm->inputs;
    if (found.residual != kNoValue) inputs.push_back(found.residual);
    Attrs attrs = found.norm->attrs;
    attrs.set("relu", int64_t{1});
    replacer.replace(relu.outputs[0], graph.add("batch_norm", inputs, attrs, relu.name));
    ++count;
  }
  replacer.finish();
  return count;
}

}  // namespace shardrun
