// Back from the output, by the operators that pass a gradient on.
#include "graph/onnx/exporter/gradient_reach.h"

#include <algorithm>
#include <string_view>

#include "graph/onnx/exporter/fx_call.h"

namespace shardrun::importer {
namespace {

/// Does a gradient at the node's results flow on to its floating input `i`?
bool passes_gradient(const ::onnx::NodeProto& node, int i) {
  static const std::set<std::string> stop = {"Shape",
                                             "Size",
                                             "Equal",
                                             "Less",
                                             "LessOrEqual",
                                             "Greater",
                                             "GreaterOrEqual",
                                             "ArgMax",
                                             "ArgMin",
                                             "IsNaN",
                                             "IsInf",
                                             "NonZero",
                                             "Sign",
                                             "Floor",
                                             "Ceil",
                                             "Round",
                                             "Range",
                                             "ConstantOfShape",
                                             "Not",
                                             "SequenceLength"};
  if (stop.count(node.op_type()) > 0 || is_setting(node, i) || is_detach(node)) return false;
  // Class weights are chosen, not trained: PyTorch too has no gradient for them.
  if (node.op_type() == "SoftmaxCrossEntropyLoss" || node.op_type() == "NegativeLogLikelihoodLoss")
    return i == 0;
  if (node.op_type() == "BatchNormalization") return i < 3;
  if (node.op_type() == "Cast") {
    for (const auto& attribute : node.attribute()) {
      if (attribute.name() == "to") return is_floating_onnx_type(static_cast<int>(attribute.i()));
    }
  }
  return true;
}

bool is_in_region(const ::onnx::NodeProto& node) {
  return std::any_of(
      node.metadata_props().begin(), node.metadata_props().end(), [](const auto& entry) {
        constexpr std::string_view kFrame = "File \"<eval_with_key>.";
        const size_t begin = entry.value().find_first_not_of(" \n");
        return entry.key() == "pkg.torch.onnx.stack_trace" && begin != std::string::npos &&
               entry.value().compare(begin, kFrame.size(), kFrame) == 0;
      });
}

}  // namespace

bool is_detach(const ::onnx::NodeProto& node) {
  if (node.op_type() != "Identity") return false;
  const std::optional<FxCall> call = fx_call_of(node);
  return call && (call->target == "aten.detach" || call->target == "aten.detach_");
}

bool is_setting(const ::onnx::NodeProto& node, int i) {
  static const std::set<std::string> operators = {"Clip", "Dropout", "OneHot",
                                                  "Pad",  "Resize",  "TopK"};
  return i > 0 && operators.count(node.op_type()) > 0;
}

bool is_learnable_bound(const ::onnx::NodeProto& node, int i, bool is_computed) {
  return i > 0 && is_computed && node.op_type() == "Clip";
}

std::set<std::string> reached_names(const std::vector<FlatNode>& nodes, const std::string& loss,
                                    const std::set<std::string>& ends) {
  std::set<std::string> reached = {loss}, made;
  for (const FlatNode& node : nodes)
    made.insert(node.proto.output().begin(), node.proto.output().end());
  for (size_t n = nodes.size(); n-- > 0;) {
    const auto& node = nodes[n].proto;
    const auto& outputs = node.output();
    if (std::none_of(outputs.begin(), outputs.end(), [&](const auto& name) {
          return reached.count(name) > 0 && ends.count(name) == 0;
        }))
      continue;
    for (int i = 0; i < node.input_size(); ++i) {
      if (passes_gradient(node, i) || is_learnable_bound(node, i, made.count(node.input(i)) > 0))
        reached.insert(node.input(i));
    }
    if (names_read(node).size() > static_cast<size_t>(node.input_size())) {  // captured by a branch
      for (const std::string& name : names_read(node)) reached.insert(name);
    }
  }
  return reached;
}

std::vector<std::string> gradient_stops(const std::vector<FlatNode>& nodes,
                                        const std::set<std::string>& reached,
                                        const std::vector<std::string>& names) {
  std::set<std::string> depends(names.begin(), names.end());
  std::vector<std::string> out;
  for (const FlatNode& node : nodes) {
    const auto& outputs = node.proto.output();
    const std::vector<std::string> read = names_read(node.proto);
    if (std::none_of(read.begin(), read.end(),
                     [&](const std::string& name) { return depends.count(name) > 0; }))
      continue;
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](const std::string& name) { return reached.count(name) > 0; })) {
      const std::string what = is_detach(node.proto) ? "detach()" : node.proto.op_type();
      out.push_back(what + " '" + node.proto.name() + "'");
    } else {
      depends.insert(outputs.begin(), outputs.end());
    }
  }
  return out;
}

std::vector<std::string> region_results(const std::vector<FlatNode>& nodes,
                                        const std::set<std::string>& reached,
                                        const std::vector<std::string>& names) {
  std::set<std::string> learns(names.begin(), names.end());  // and what is computed from these
  std::set<std::string> within;
  std::vector<std::string> out;
  const auto is_of = [](const std::set<std::string>& values) {
    return [&values](const std::string& name) { return values.count(name) > 0; };
  };
  for (const FlatNode& node : nodes) {
    const std::vector<std::string> read = names_read(node.proto);
    const auto& made = node.proto.output();
    const bool is_within = is_in_region(node.proto);
    for (const std::string& name : read) {
      if (!is_within && reached.count(name) > 0 && within.erase(name) > 0) out.push_back(name);
    }
    if (is_detach(node.proto) || std::none_of(read.begin(), read.end(), is_of(learns)) ||
        std::none_of(made.begin(), made.end(), is_of(reached)))
      continue;
    learns.insert(made.begin(), made.end());
    if (is_within) within.insert(made.begin(), made.end());
  }
  return out;
}

}  // namespace shardrun::importer
