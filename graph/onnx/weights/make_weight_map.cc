#include "graph/onnx/weights/make_weight_map.h"

#include <algorithm>

#include "graph/onnx/lower/lowering.h"
#include "graph/onnx/weights/module_tensors.h"

namespace shardrun::importer {
namespace {

void add_value(const StoredTensor& tensor, bool kept, WeightMap& map) {
  map.values.try_emplace(
      tensor.name, WeightMap::Value{tensor.type, tensor.stored, tensor.source(), kept, false});
}

/// The shape of what a node describes: its attribute, or an initialiser of integers.
Shape described_shape(const ::onnx::NodeProto& node, const ModelFile& model) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == "shape") return {attribute.ints().begin(), attribute.ints().end()};
  }
  for (const StoredTensor& tensor : model.initialisers) {
    if (node.input_size() > 0 && tensor.name == node.input(0)) return tensor.load().to_ints();
  }
  fail(ErrorKind::invalid_input, "node '", node.name(), "' describes a weight of no known shape");
}

void add_described(const FlatNode& node, const ModelFile& model, WeightMap& map) {
  if (described_weight(node.proto).empty() || node.proto.output_size() == 0) return;
  const std::string& name = node.proto.output(0);
  const TensorType type{DType::f32, described_shape(node.proto, model)};
  map.values.try_emplace(name, WeightMap::Value{type, DType::f32, {}, true, true});
  if (node.place >= 0) map.makers.push_back({static_cast<size_t>(node.place), name, true});
}

}  // namespace

WeightMap make_weight_map(const ModelFile& model, const std::vector<FlatNode>& nodes,
                          const RestoredWeights& restored, const Weights& weights,
                          const std::map<std::string, std::string>& tied) {
  WeightMap out;
  for (const auto& [name, weight] : weights.by_name) {
    add_value(weight.tensor, (weight.is_parameter || weight.is_state) && weight.tied_to.empty(),
              out);
  }
  for (const StoredTensor& tensor : model.initialisers) {
    add_value(tensor, false, out);
    const auto weight = weights.by_name.find(tensor.name);
    if (weight == weights.by_name.end()) continue;
    const std::string& value =
        weight->second.tied_to.empty() ? tensor.name : weight->second.tied_to;
    out.initialisers[tensor.name] = {value, 0, 0, tensor.count(), weight->second.transposed};
  }
  for (const FlatNode& node : nodes) add_described(node, model, out);
  for (const auto* inputs : {&restored.inputs, &weights.inputs}) {
    for (const ChangedInput& input : *inputs) {
      out.inputs.push_back(
          {static_cast<size_t>(input.node), static_cast<size_t>(input.input), input.tensor});
    }
  }
  for (const auto& [name, place] : weights.copied) {
    if (place >= 0) out.makers.push_back({static_cast<size_t>(place), name, false});
  }
  map_module(model, nodes, weights, tied, out);
  return out;
}

}  // namespace shardrun::importer
