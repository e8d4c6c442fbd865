// Accuracy of a classifier, as metrics of its validation.
#include <algorithm>

#include "graph/ops/gradients.h"
#include "graph/passes/training.h"

namespace shardrun {
namespace {

/// The batch input that `id` is, seen through moves and casts; kNoValue if it is none.
ValueId batch_input_of(const Graph& g, ValueId id) {
  while (g.value(id).producer >= 0) {
    const Node& node = g.node(g.value(id).producer);
    if (op_def(node.op).elements != Elements::all) return kNoValue;
    id = node.inputs[0];
  }
  return g.value(id).role == Role::batch ? id : kNoValue;
}

}  // namespace

bool attach_accuracy(Graph& graph) {
  const Node* loss = nullptr;
  for (const Node& node : graph.nodes()) {
    if (!takes_labels(node)) continue;
    if (loss != nullptr) return false;
    loss = &node;
  }
  if (loss == nullptr) return false;
  const ValueId logits = loss->inputs[0], labels = loss->inputs[1];
  const int64_t ignore = loss->attrs.i("ignore_index", kNoIgnoredLabel);
  const ValueId source = batch_input_of(graph, labels);
  if (source == kNoValue) return false;
  const std::vector<ValueId> inputs = graph.with_role(Role::batch);
  const bool tokens = std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
    return id != source && !is_float(graph.type(id).dtype) &&
           graph.type(id).shape == graph.type(source).shape;
  });
  const auto count = [&](ValueId flags, const char* name) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < graph.type(flags).shape.size(); ++d)
      axes.push_back(static_cast<int64_t>(d));
    return graph.add("reduce_sum", {cast_to(graph, flags, DType::f32)},
                     {{"axes", axes}, {"keepdims", int64_t{0}}}, name);
  };
  const DType dtype = graph.type(labels).dtype;
  const ValueId counted =
      graph.add("logical_not",
                {graph.add("equal",
                           {labels, graph.add("fill", {},
                                              {{"shape", Shape{}},
                                               {"dtype", std::string(to_string(dtype))},
                                               {"value", static_cast<double>(ignore)}},
                                              "accuracy/ignored")},
                           {}, "accuracy/is_ignored")},
                {}, "accuracy/is_counted");
  graph.metrics["counted"] = count(counted, "accuracy/counted");
  if (tokens) return false;
  const int64_t axis = static_cast<int64_t>(graph.type(logits).shape.size()) - 1;
  ValueId predicted = graph.add("argmax", {logits}, {{"axis", axis}, {"keepdims", int64_t{0}}},
                                "accuracy/predicted");
  predicted = cast_to(graph, predicted, dtype);
  ValueId hit = graph.add("equal", {predicted, labels}, {}, "accuracy/hit");
  hit = graph.add("logical_and", {hit, counted}, {}, "accuracy/counted_hit");
  graph.metrics["correct"] = count(hit, "accuracy/correct");
  return true;
}

}  // namespace shardrun
