// What an export says of its initialisers, and which nodes do what with them.
#include "graph/onnx/weights/deciding.h"

#include <algorithm>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";

/// Where none of the module's parameters is in the file, the exporter lifted as constants what
/// the call read instead: Keras's PyTorch backend passes its variables apart from the module.
void forget_lifted(Deciding& d) {
  const auto& stored = d.model.initialisers;
  auto is_lifted = [&](const StoredTensor& tensor) {
    const auto kind = d.said.kinds.find(tensor.name);
    return kind != d.said.kinds.end() && kind->second == "CONSTANT_TENSOR" &&
           is_float(tensor.type.dtype);
  };
  auto is_of_parameter = [&](const StoredTensor& tensor) {
    const auto kind = d.said.kinds.find(tensor.name);
    return d.said.folded.count(tensor.name) > 0 ||
           (kind != d.said.kinds.end() && kind->second == "PARAMETER");
  };
  if (!d.options.training || std::none_of(stored.begin(), stored.end(), is_lifted) ||
      std::any_of(stored.begin(), stored.end(), is_of_parameter))
    return;
  std::erase_if(d.said.kinds, [](const auto& of) { return of.second != "BUFFER"; });
  d.said.is_signed = false;
  d.report.notes.push_back(
      "the export's metadata call every weight a constant: constants are taken for weights, as "
      "from an exporter without metadata");
}

/// Does a layer keep its weight, bias or scale there? A scalar that is added is no bias, which
/// has a dim for its channels.
bool is_learned_operand(const Deciding& d, const Use& use, const StoredTensor& tensor) {
  static const std::map<std::string, std::set<int>> learned = {{"BatchNormalization", {1, 2}},
                                                               {"Conv", {1, 2}},
                                                               {"ConvTranspose", {1, 2}},
                                                               {"Gemm", {1, 2}},
                                                               {"GroupNormalization", {1, 2}},
                                                               {"InstanceNormalization", {1, 2}},
                                                               {"LayerNormalization", {1, 2}},
                                                               {"MatMul", {0, 1}},
                                                               {"PRelu", {1}},
                                                               {"RMSNormalization", {1}}};
  const auto& node = d.nodes[use.first].proto;
  if (node.op_type() == "Add") {
    return node.input_size() == 2 && !tensor.type.shape.empty() &&
           is_product_with_weight(d, node.input(1 - use.second));
  }
  const auto found = learned.find(node.op_type());
  return found != learned.end() && found->second.count(use.second) > 0;
}

}  // namespace

void Deciding::read_metadata() {
  said.from_tf2onnx = model.proto.producer_name() == "tf2onnx";
  auto take = [&](const std::string& name, const std::string& key, const std::string& value) {
    if (key == kKind) said.kinds[name] = value;
    if (key == kFoldedFrom) said.folded[name] = value;
    if (key.rfind("pkg.onnxscript.", 0) == 0) said.optimised = true;
  };
  for (const auto& info : model.proto.graph().value_info()) {
    for (const auto& entry : info.metadata_props()) take(info.name(), entry.key(), entry.value());
  }
  for (const auto* list : {&model.initialisers, &restored.tensors}) {
    for (const StoredTensor& tensor : *list) {
      for (const auto& [key, value] : tensor.metadata) take(tensor.name, key, value);
    }
  }
  const auto all = signature_of(model.proto.graph()).kinds;
  said.kinds.insert(all.begin(), all.end());
  said.is_signed = !all.empty();
  forget_lifted(*this);
}

void Deciding::add(const std::string& name, const StoredTensor& tensor) {
  Weight weight;
  weight.tensor = tensor;
  weight.tensor.name = name;
  out.by_name[name] = std::move(weight);
  out.order.push_back(name);
}

void Deciding::find_uses() {
  readers.clear();
  makers = makers_of(nodes);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const auto& node = nodes[n].proto;
    for (int i = 0; i < node.input_size(); ++i) readers[node.input(i)].emplace_back(n, i);
  }
}

std::vector<std::string> Deciding::own_sources(const std::string& name) const {
  std::vector<std::string> own;
  const auto folded = said.folded.find(name);
  if (folded == said.folded.end()) return own;
  for (const std::string& source : quoted_names(folded->second)) {
    if (said.is_signed ? said.kinds.count(source) > 0
                       : !is_traced(source) && made.count(source) == 0)
      own.push_back(source);
  }
  return own;
}

std::vector<std::string> Deciding::names_of(const std::string& name) const {
  const Weight& w = out.by_name.at(name);
  std::vector<std::string> names = {name};
  names.insert(names.end(), w.other_names.begin(), w.other_names.end());
  return names;
}

std::string shown(const std::string& name, const StoredTensor& tensor) {
  return str("initialiser '", name, "' (", tensor.type, ")");
}

std::vector<Use> final_uses(const Deciding& d, const std::string& name) {
  static const std::set<std::string> movers = {"Cast", "Identity", "Reshape", "Squeeze",
                                               "Unsqueeze"};
  std::vector<Use> out;
  std::vector<std::string> names = {name};
  std::set<std::string> seen = {name};
  while (!names.empty()) {
    const auto found = d.readers.find(names.back());
    names.pop_back();
    if (found == d.readers.end()) continue;
    for (const Use& use : found->second) {
      const auto& node = d.nodes[use.first].proto;
      if (use.second > 0 || movers.count(node.op_type()) == 0) {
        out.push_back(use);
      } else if (seen.insert(node.output(0)).second) {
        names.push_back(node.output(0));
      }
    }
  }
  return out;
}

bool is_product_with_weight(const Deciding& d, const std::string& name) {
  const auto made = d.makers.find(name);
  if (made == d.makers.end()) return false;
  const auto& node = d.nodes[made->second].proto;
  if (node.op_type() == "Gemm" || node.op_type() == "Conv" || node.op_type() == "ConvTranspose")
    return true;
  if (node.op_type() != "MatMul") return false;
  return std::any_of(node.input().begin(), node.input().end(), [&](const std::string& operand) {
    const auto transpose = d.makers.find(operand);
    return d.is_initialiser(operand) ||
           (transpose != d.makers.end() &&
            d.nodes[transpose->second].proto.op_type() == "Transpose" &&
            d.is_initialiser(d.nodes[transpose->second].proto.input(0)));
  });
}

bool is_learned_operand(const Deciding& d, const std::vector<Use>& uses,
                        const StoredTensor& tensor) {
  return std::any_of(uses.begin(), uses.end(),
                     [&](const Use& use) { return is_learned_operand(d, use, tensor); });
}

const char* fixed_as(const Deciding& d, const Use& use) {
  static const std::set<std::string> guarded = {"Log", "Pow", "Reciprocal", "Sqrt"};
  const auto& node = d.nodes[use.first].proto;
  const std::string& op = node.op_type();
  if (op == "Where" && use.second > 0) return "what a mask fills in";
  if (op == "Pow" && use.second == 1) return "an exponent";
  if (op != "Add" && op != "Max") return "";
  const auto readers = d.readers.find(node.output(0));
  const bool guards =
      readers != d.readers.end() &&
      std::any_of(readers->second.begin(), readers->second.end(), [&](const Use& reader) {
        return guarded.count(d.nodes[reader.first].proto.op_type()) > 0;
      });
  return guards ? "an epsilon" : "";
}

std::string kind_in_batch_norm(const Deciding& d, const Use& use) {
  if (d.nodes[use.first].proto.op_type() != "BatchNormalization" || use.second == 0) return "";
  return use.second < 3 ? "PARAMETER" : "BUFFER";
}

bool has_bias(const Deciding& d, const ::onnx::NodeProto& product) {
  static const std::set<std::string> movers = {"Cast",    "Identity",  "Reshape",
                                               "Squeeze", "Transpose", "Unsqueeze"};
  if (product.input_size() > 2) return true;
  std::string at = product.output(0);
  for (auto use = d.readers.find(at); use != d.readers.end() && use->second.size() == 1;
       use = d.readers.find(at)) {
    const auto& node = d.nodes[use->second[0].first].proto;
    if (node.op_type() == "Add")
      return std::any_of(node.input().begin(), node.input().end(),
                         [&](const std::string& name) { return d.is_initialiser(name); });
    if (movers.count(node.op_type()) == 0) return false;
    at = node.output(0);
  }
  return false;
}

}  // namespace shardrun::importer
