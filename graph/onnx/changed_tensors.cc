#include "graph/onnx/changed_tensors.h"

#include <algorithm>

#include "graph/onnx/export_signature.h"
#include "graph/onnx/exporter_names.h"
#include "graph/onnx/gradient_reach.h"

namespace shardrun::importer {
namespace {

using Names = std::set<std::string>;

/// What values are called in the file, by what the exporter first called them.
std::map<std::string, std::string> names_now(const ::onnx::GraphProto& graph) {
  std::map<std::string, std::string> out;
  for (const auto& [now, before] : value_metadata(graph, "pkg.torch.onnx.original_node_name"))
    out.emplace(before, now);
  return out;
}

const std::string& known_as(const std::map<std::string, std::string>& names,
                            const std::string& name) {
  const auto it = names.find(name);
  return it == names.end() ? name : it->second;
}

/// What a normalisation keeps; its lowering moves it, and says so where it cannot.
bool is_of_norm(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var") ||
         name.ends_with("num_batches_tracked");
}

class Finder {
 public:
  Finder(const ModelFile& model, const std::vector<FlatNode>& nodes,
         const std::map<std::string, std::string>& other_names, const std::string& loss)
      : graph_(model.proto.graph()), nodes_(nodes), loss_(loss) {
    for (const StoredTensor& tensor : model.initialisers) stored_.insert(tensor.name);
    for (const auto& input : graph_.input()) inputs_.insert(input.name());
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (const std::string& name : nodes[n].proto.output()) maker_[name] = n;
    }
    const ExportSignature signature = signature_of(graph_);
    for (const auto& [name, kind] : signature.kinds)
      kinds_.emplace(known_as(other_names, name), kind);
    const std::map<std::string, std::string> now = names_now(graph_);
    for (const ExportSignature::Mutation& change : signature.mutations)
      changes_.push_back({known_as(other_names, change.tensor), known_as(now, change.value)});
  }

  ChangedTensors run() {
    if (changes_.empty()) return {};
    take_those_in_the_file();
    find_read_back();
    find_learning();
    return std::move(out_);
  }

 private:
  void take_those_in_the_file() {
    Names of_batch_norms;
    for (const FlatNode& node : nodes_) {
      if (node.proto.op_type() != "BatchNormalization") continue;
      for (int i = 3; i < node.proto.input_size(); ++i) of_batch_norms.insert(node.proto.input(i));
    }
    const auto sources = value_metadata(graph_, "pkg.onnxscript.optimizer.folded_from");
    const auto is_folded = [&](const std::string& tensor) {
      return std::any_of(sources.begin(), sources.end(), [&](const auto& folded) {
        const std::vector<std::string> from = quoted_names(folded.second);
        return std::find(from.begin(), from.end(), tensor) != from.end();
      });
    };
    std::vector<std::string> folded, unknown, absent;
    for (const auto& [tensor, value] : changes_) {
      if (of_batch_norms.count(tensor) > 0) continue;
      if (sources.count(value) > 0 || is_folded(tensor)) {
        folded.push_back(tensor);
      } else if (maker_.count(value) + inputs_.count(value) + stored_.count(value) > 0) {
        out_.by_name[tensor].next = value;
      } else if (stored_.count(tensor) > 0) {
        unknown.push_back(tensor);
      } else if (!is_of_norm(tensor)) {
        absent.push_back(tensor);
      }
    }
    const char* way =
        "further outputs of the module that is exported keep such contents in the file "
        "(docs/onnx.md, \"State\")";
    note(
        folded,
        ", and the exporter's optimiser computed ahead with the first contents, which stay; export "
        "with torch.onnx.export(…, dynamo=True, optimize=False)");
    note(unknown, str(", but the file does not hold the new contents, for no output depends on "
                      "them: the first ones stay; ",
                      way));
    note(absent, str(", of which the file holds nothing, for no output depends on it; ", way));
  }
  void note(const std::vector<std::string>& tensors, const std::string& what) {
    if (!tensors.empty()) out_.notes.push_back(str("forward() changes ", listed(tensors), what));
  }

  /// All that is computed from the numbers of `names`, these included.
  Names computed_from(Names names) const {
    for (const FlatNode& node : nodes_) {
      if (node.proto.op_type() == "Shape" || node.proto.op_type() == "Size") continue;
      const std::vector<std::string> read = names_read(node.proto);
      if (std::any_of(read.begin(), read.end(), [&](const auto& n) { return names.count(n) > 0; }))
        names.insert(node.proto.output().begin(), node.proto.output().end());
    }
    return names;
  }

  /// The inputs and initialisers that a value is computed from.
  Names origins(const std::string& value) const {
    Names out, seen = {value};
    std::vector<std::string> open = {value};
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      const auto made = maker_.find(name);
      if (made == maker_.end()) {
        out.insert(name);
        continue;
      }
      for (const std::string& read : names_read(nodes_[made->second].proto)) {
        if (seen.insert(read).second) open.push_back(read);
      }
    }
    return out;
  }

  bool is_parameter(const std::string& name) const {
    const auto kind = kinds_.find(name);
    return kind != kinds_.end() && kind->second == "PARAMETER";
  }

  /// The parameters that no longer learn if the gradient ends where changed tensors are made.
  Names cut_off() const {
    const Names with = reached_names(nodes_, loss_, {});
    const Names without = reached_names(nodes_, loss_, out_.gradient_ends());
    Names out;
    for (const auto& [name, kind] : kinds_) {
      if (is_parameter(name) && out_.by_name.count(name) == 0 && with.count(name) > 0 &&
          without.count(name) == 0)
        out.insert(name);
    }
    return out;
  }

  /// Code that changes a tensor of the module runs without gradients, or the next step would want
  /// those of this one. What is computed from the tensor as it was, and replaces it, is taken for
  /// such code's: an average, a counter. But a value through which alone some parameter learns is
  /// forward()'s own, of which the tensor gets a copy: the last output of a recurrent layer.
  void find_read_back() {
    Names before;
    for (const auto& [name, change] : out_.by_name) before.insert(name);
    const Names moved = computed_from(before);
    std::vector<ChangedTensor*> last_first;
    for (auto& [name, change] : out_.by_name) {
      change.is_read_back = maker_.count(change.next) > 0 && moved.count(change.next) > 0;
      if (change.is_read_back) last_first.push_back(&change);
    }
    std::sort(last_first.begin(), last_first.end(), [&](const auto* a, const auto* b) {
      return maker_.at(a->next) > maker_.at(b->next);
    });
    Names lost = cut_off();
    for (ChangedTensor* change : last_first) {
      if (lost.empty()) break;
      change->is_read_back = false;
      const Names fewer = cut_off();
      change->is_read_back = fewer.size() == lost.size();
      if (!change->is_read_back) lost = fewer;
    }
  }

  void find_learning() {
    for (auto& [name, change] : out_.by_name) {
      if (!is_parameter(name) || !change.is_read_back) continue;
      const Names from = origins(change.next);
      change.learns = std::all_of(from.begin(), from.end(), [&](const std::string& origin) {
        return origin == name || (!is_parameter(origin) && out_.by_name.count(origin) == 0 &&
                                  inputs_.count(origin) == 0);
      });
    }
  }

  const ::onnx::GraphProto& graph_;
  const std::vector<FlatNode>& nodes_;
  const std::string& loss_;
  std::map<std::string, std::string> kinds_;
  std::vector<ExportSignature::Mutation> changes_;
  Names stored_, inputs_;
  std::map<std::string, size_t> maker_;
  ChangedTensors out_;
};

}  // namespace

std::set<std::string> ChangedTensors::gradient_ends() const {
  std::set<std::string> out;
  for (const auto& [name, change] : by_name) {
    if (change.is_read_back) out.insert(change.next);
  }
  return out;
}

ChangedTensors find_changed_tensors(const ModelFile& model, const std::vector<FlatNode>& nodes,
                                    const std::map<std::string, std::string>& other_names,
                                    const std::string& loss) {
  return Finder(model, nodes, other_names, loss).run();
}

std::set<std::string> values_of_changes(const ModelFile& model) {
  const std::map<std::string, std::string> now = names_now(model.proto.graph());
  std::set<std::string> out;
  for (const ExportSignature::Mutation& change : signature_of(model.proto.graph()).mutations)
    out.insert(known_as(now, change.value));
  return out;
}

}  // namespace shardrun::importer
