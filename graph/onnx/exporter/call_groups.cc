#include "graph/onnx/exporter/call_groups.h"

#include <algorithm>
#include <iterator>

#include "graph/onnx/exporter/export_signature.h"

namespace shardrun::importer {
namespace {

/// What a group reads of values that it does not make itself.
std::vector<Read> outside_reads(const CallGroup& group, const std::vector<FlatNode>& nodes) {
  std::set<std::string> made;
  std::vector<Read> out;
  for (size_t n : group.nodes) {
    const ::onnx::NodeProto& node = nodes[n].proto;
    for (int i = 0; i < node.input_size(); ++i) {
      if (!node.input(i).empty() && made.count(node.input(i)) == 0)
        out.push_back({n, i, node.input(i)});
    }
    made.insert(node.output().begin(), node.output().end());
  }
  return out;
}

}  // namespace

std::vector<CallGroup> call_groups(const std::vector<FlatNode>& nodes) {
  std::vector<CallGroup> out;
  std::map<std::string, size_t> by_result;
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::optional<FxCall> call = fx_call_of(nodes[n].proto);
    if (!call) continue;
    const auto [it, fresh] = by_result.try_emplace(call->result, out.size());
    if (fresh) out.push_back({std::move(*call), {}});
    out[it->second].nodes.push_back(n);
  }
  return out;
}

CallNames::CallNames(const ModelFile& model, const std::vector<FlatNode>& nodes)
    : tensors_(signature_of(model.proto.graph()).placeholders) {
  const auto folded = value_metadata(model.proto.graph(), "pkg.onnxscript.optimizer.folded_from");
  for (const StoredTensor& tensor : model.initialisers) {
    std::set<std::string>& sources = sources_[tensor.name];
    sources.insert(tensor.name);
    if (is_float(tensor.type.dtype)) floats_.insert(tensor.name);
    for (const auto* of : {&folded, &tensor.metadata}) {
      const auto found = of->find(of == &folded ? tensor.name : kFoldedFrom);
      if (found == of->end()) continue;
      for (const std::string& source : quoted_names(found->second)) sources.insert(source);
    }
  }
  for (const auto& [name, sources] : sources_) left_.insert(sources.begin(), sources.end());
  for (const auto* list : {&model.proto.graph().input(), &model.proto.graph().output()}) {
    for (const auto& value : *list) {
      for (const auto& entry : value.metadata_props()) {
        if (entry.key() == "pkg.torch.onnx.original_node_name")
          renamed_[entry.value()] = value.name();
      }
    }
  }
  for (const auto& input : model.proto.graph().input()) made_.insert(input.name());
  for (const FlatNode& node : nodes)
    made_.insert(node.proto.output().begin(), node.proto.output().end());
}

bool CallNames::stands_for(const std::string& stored, const std::string& tensor) const {
  const auto found = sources_.find(stored);
  return found != sources_.end() && found->second.count(tensor) > 0;
}

void CallNames::add_stored(const std::string& name, const std::string& source) {
  sources_[name] = {name, source};
  left_.insert({name, source});
  floats_.insert(name);
}

std::string CallNames::tensor_of(const std::string& value) const {
  const auto found = tensors_.find(value);
  return found == tensors_.end() ? "" : found->second;
}

bool CallNames::matches_in_order(const std::vector<std::string>& tensors,
                                 std::vector<Read>& stored) const {
  std::erase_if(stored, [&](const Read& read) { return floats_.count(read.name) == 0; });
  if (tensors.size() != stored.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (is_left(tensors[i]) && !stands_for(stored[i].name, tensors[i])) return false;
  }
  return true;
}

CallNames::Unmatched CallNames::unmatched(const CallGroup& group,
                                          const std::vector<FlatNode>& nodes) const {
  Unmatched out;
  std::vector<Read> stored;
  for (Read& read : outside_reads(group, nodes))
    (is_stored(read.name) ? stored : out.reads).push_back(std::move(read));
  std::vector<std::string> arguments = group.call.values(), tensors;
  for (std::string& argument : arguments) {
    if (const auto it = renamed_.find(argument); it != renamed_.end()) argument = it->second;
  }
  if (group.call.target == "aten.addmm" && !arguments.empty())
    // (bias, x, w), where Gemm has its bias last
    std::rotate(arguments.begin(), arguments.begin() + 1, arguments.end());
  for (const std::string& argument : std::set(arguments.begin(), arguments.end())) {
    if (!tensor_of(argument).empty()) continue;
    const auto read = std::erase_if(out.reads, [&](const Read& r) { return r.name == argument; });
    out.unread = out.unread || (read == 0 && made_.count(argument) > 0);
  }
  for (const std::string& argument : arguments) {
    const std::string tensor = tensor_of(argument);
    if (tensor.empty() && made_.count(argument) == 0) out.values.push_back(argument);
    if (!tensor.empty()) tensors.push_back(tensor);
  }
  std::vector<Read> in_order = stored;
  if (matches_in_order(tensors, in_order)) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (stands_for(in_order[i].name, tensors[i])) continue;
      out.tensors.push_back(tensors[i]);
      out.stored.push_back(in_order[i]);
    }
    return out;
  }
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(out.tensors),
               [&](const std::string& tensor) {
                 return std::none_of(stored.begin(), stored.end(), [&](const Read& read) {
                   return stands_for(read.name, tensor);
                 });
               });
  // One may stand for several: a recurrent layer's biases are in one tensor.
  std::erase_if(stored, [&](const Read& read) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const std::string& tensor) { return stands_for(read.name, tensor); });
  });
  out.stored = std::move(stored);
  return out;
}

}  // namespace shardrun::importer
