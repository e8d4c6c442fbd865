#include "graph/onnx/exporter/tied_names.h"

#include <algorithm>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"

namespace shardrun::importer {
namespace {

/// The module that ran a step, by the newer exporter: the last but one of
/// "['', 'bert', 'bert.embeddings', 'embedding']".
std::string module_in_scopes(const ::onnx::NodeProto& node) {
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() != "pkg.torch.onnx.name_scopes") continue;
    const std::vector<std::string> scopes = quoted_names(entry.value());
    return scopes.size() < 2 ? "" : scopes[scopes.size() - 2];
  }
  return "";
}

/// The tensor of a child that is the only one called like `name`, which no step reads: "head.bias"
/// -> "head.decoder.bias", where a module hands its own to a layer within. Empty if there is none.
std::string of_only_child(const std::string& name, const std::set<std::string>& stored) {
  std::string out;
  for (const std::string& other : stored) {
    if (last_name(other) != last_name(name) || other == name ||
        owner_of(owner_of(other)) != owner_of(name))
      continue;
    if (!out.empty()) return "";
    out = other;
  }
  return out;
}

/// What the older exporter calls a module that it has called before: "enc.fc_1" of "enc.fc".
bool is_called_again(const std::string& module, const std::string& name) {
  if (module == name) return true;
  const auto dot = [](const std::string& text) { return std::min(text.find('.'), text.size()); };
  const std::string part = module.substr(0, dot(module)), own = name.substr(0, dot(name));
  if (part.empty() || (part != own && op_of(part) != own)) return false;
  const auto rest = [&](const std::string& text) {
    return text.substr(std::min(dot(text) + 1, text.size()));
  };
  return is_called_again(rest(module), rest(name));
}

/// Is `name` of a layer within the module? One that reads its layers' weights itself, as
/// nn.MultiheadAttention does "out_proj.weight", does not call them its own.
bool is_within(const std::string& name, const std::string& module) {
  return name.starts_with(module + ".");
}

/// Does a module have a tensor of its own in the file?
bool owns(const std::string& module, const std::set<std::string>& stored) {
  const auto it = stored.lower_bound(module + ".");
  return it != stored.end() && it->starts_with(module + ".");
}

}  // namespace

std::map<std::string, std::string> tied_names(const ModelFile& model,
                                              const std::vector<FlatNode>& nodes) {
  std::map<std::string, std::string> out;
  if (model.proto.producer_name() != "pytorch") return out;
  std::set<std::string> stored;
  for (const StoredTensor& tensor : model.initialisers) stored.insert(tensor.name);
  const auto kinds = signature_of(model.proto.graph()).kinds;
  for (const FlatNode& node : nodes) {
    const std::string module =
        kinds.empty() ? module_of(node.proto.name()) : module_in_scopes(node.proto);
    if (module.empty()) continue;
    for (const std::string& read : node.proto.input()) {
      if (stored.count(read) == 0) continue;
      const std::string other = module + "." + last_name(read);
      if (stored.count(other) > 0) continue;
      if (is_called_again(module, owner_of(read)) && !owns(module, stored)) continue;
      const bool guessed = named_as_weight(read) && !is_generated(read);
      if (kinds.empty() ? guessed && !is_within(owner_of(read), module) : kinds.count(other) > 0)
        out.emplace(other, read);
    }
  }
  for (const auto& [name, kind] : kinds) {
    if (kind != "PARAMETER" || stored.count(name) > 0 || out.count(name) > 0) continue;
    const std::string child = of_only_child(name, stored);
    if (!child.empty() && kinds.count(child) > 0 && kinds.at(child) == kind)
      out.emplace(name, child);
  }
  return out;
}

}  // namespace shardrun::importer
