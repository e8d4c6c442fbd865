#include "graph/onnx/exporter/changed_tensors.h"

#include <algorithm>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/gradient_reach.h"

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
      : graph_(model.proto.graph()), nodes_(nodes), makers_(makers_of(nodes)), loss_(loss) {
    for (const StoredTensor& tensor : model.initialisers) stored_.insert(tensor.name);
    for (const auto& input : graph_.input()) inputs_.insert(input.name());
    for (const auto* list : {&graph_.input(), &graph_.output(), &graph_.value_info()}) {
      for (const auto& info : *list) types_[info.name()] = &info.type().tensor_type();
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
    find_earlier();
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
      } else if (makers_.count(value) + inputs_.count(value) + stored_.count(value) > 0) {
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
    note(absent,
         str(", of which the file holds nothing: no output depends on it, or the exporter's "
             "optimiser took out what does (export with optimize=False); ",
             way));
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
      const auto made = makers_.find(name);
      if (made == makers_.end()) {
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

  /// The first dim where it is a number above 1, else 0.
  int64_t rows(const std::string& value) const {
    const auto type = types_.find(value);
    if (type == types_.end() || type->second->shape().dim_size() == 0) return 0;
    const int64_t size = type->second->shape().dim(0).dim_value();
    return size > 1 ? size : 0;
  }

  /// Values with a row for each sample. Where the batch is a symbolic dim no tensor keeps one.
  Names samples() const {
    const auto passes_rows = [](const ::onnx::NodeProto& node, int i) {
      const std::string& op = node.op_type();
      return !op.starts_with("Reduce") && op != "Transpose" &&
             (i == 0 || (op != "MatMul" && op != "Gemm"));
    };
    Names out;
    for (const auto& input : graph_.input()) {
      if (stored_.count(input.name()) == 0 && rows(input.name()) > 0) out.insert(input.name());
    }
    for (const FlatNode& node : nodes_) {
      for (int i = 0; i < node.proto.input_size(); ++i) {
        const std::string& read = node.proto.input(i);
        if (out.count(read) == 0 || !passes_rows(node.proto, i)) continue;
        for (const std::string& made : node.proto.output()) {
          if (rows(made) == rows(read)) out.insert(made);
        }
      }
    }
    return out;
  }

  static std::string text_of(const ::onnx::TypeProto_Tensor& type) {
    return type.SerializeAsString();
  }
  bool are_of_one_type(const std::string& a, const std::string& b) const {
    const auto of_a = types_.find(a), of_b = types_.find(b);
    return of_a != types_.end() && of_b != types_.end() &&
           text_of(*of_a->second) == text_of(*of_b->second);
  }

  /// Code that changes a tensor of the module runs without gradients, or the next step would want
  /// those of this one. What is computed from the tensor as it was, and replaces it, is taken for
  /// such code's: an average, a counter. But a value with a row for each sample, and one through
  /// which alone some parameter learns, is forward()'s own, of which the tensor gets a copy: the
  /// last output of a recurrent layer.
  void find_read_back() {
    Names before;
    for (const auto& [name, change] : out_.by_name) before.insert(name);
    const Names moved = computed_from(before);
    std::vector<ChangedTensor*> last_first;
    const Names of_samples = samples();
    for (auto& [name, change] : out_.by_name) {
      change.is_read_back = makers_.count(change.next) > 0 && moved.count(change.next) > 0 &&
                            of_samples.count(change.next) == 0;
      if (change.is_read_back) last_first.push_back(&change);
    }
    std::sort(last_first.begin(), last_first.end(), [&](const auto* a, const auto* b) {
      return makers_.at(a->next) > makers_.at(b->next);
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

  /// How many levels of operators the makings of two values have in common. A changed tensor is
  /// like what it became before.
  int likeness(const std::string& a, const std::string& b, int depth = 0) const {
    if (depth == kLevels || out_.by_name.count(a) + out_.by_name.count(b) > 0) return kLevels;
    const auto of_a = makers_.find(a), of_b = makers_.find(b);
    if (of_a == makers_.end() || of_b == makers_.end()) return a == b ? kLevels : 0;
    const auto &x = nodes_[of_a->second].proto, &y = nodes_[of_b->second].proto;
    if (x.op_type() != y.op_type() || x.input_size() != y.input_size()) return 0;
    int least = kLevels;
    for (int i = 0; i < x.input_size(); ++i)
      least = std::min(least, likeness(x.input(i), y.input(i), depth + 1));
    return std::min(kLevels, 1 + least);
  }

  bool leads_to(const std::string& from, const std::string& to) const {
    return computed_from({from}).count(to) > 0;
  }

  /// A module that is called twice changes its tensor twice. In between stands a value on the way
  /// from the tensor to what it becomes, made alike and of the same type, which others read; what
  /// the tensor was, nobody reads any more.
  void find_earlier() {
    Names ends = out_.gradient_ends(), before;
    if (ends.empty()) return;
    for (const auto& [name, change] : out_.by_name) before.insert(name);
    const Names moved = computed_from(before);
    std::map<std::string, size_t> last_read;
    std::map<std::string, std::vector<size_t>> readers;
    Names leading = ends;
    for (size_t n = nodes_.size(); n-- > 0;) {
      const auto& outputs = nodes_[n].proto.output();
      const bool leads = std::any_of(outputs.begin(), outputs.end(),
                                     [&](const auto& name) { return leading.count(name) > 0; });
      for (const std::string& name : names_read(nodes_[n].proto)) {
        last_read.emplace(name, n);
        if (leads) leading.insert(name);
        if (!leads) readers[name].push_back(n);
      }
    }
    const size_t lost = cut_off().size();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (const std::string& value : nodes_[n].proto.output()) {
        const bool between = moved.count(value) > 0 && leading.count(value) > 0 &&
                             ends.count(value) == 0 && readers.count(value) > 0;
        if (!between) continue;
        ChangedTensor* best = nullptr;
        int most = 1;
        for (auto& [name, change] : out_.by_name) {
          const auto read = last_read.find(name);
          if (!change.is_read_back || !are_of_one_type(value, change.next) ||
              makers_.at(change.next) < n || (read != last_read.end() && read->second > n))
            continue;
          const int alike = likeness(value, change.next);
          if (alike > most) best = &change, most = alike;
        }
        if (best != nullptr && leads_to(value, best->next)) best->earlier.push_back(value);
      }
    }
    if (cut_off().size() == lost) return;
    for (auto& [name, change] : out_.by_name) change.earlier.clear();  // forward()'s own steps
  }

  void find_learning() {
    for (auto& [name, change] : out_.by_name) {
      if (!is_parameter(name) || !change.is_read_back) continue;
      const Names from = origins(change.next);
      change.learns = std::all_of(from.begin(), from.end(), [&, &name = name](const auto& origin) {
        return origin == name || (!is_parameter(origin) && out_.by_name.count(origin) == 0 &&
                                  inputs_.count(origin) == 0);
      });
    }
  }

  static constexpr int kLevels = 4;

  const ::onnx::GraphProto& graph_;
  const std::vector<FlatNode>& nodes_;
  const std::map<std::string, size_t> makers_;
  const std::string& loss_;
  std::map<std::string, std::string> kinds_;
  std::vector<ExportSignature::Mutation> changes_;
  Names stored_, inputs_;
  std::map<std::string, const ::onnx::TypeProto_Tensor*> types_;  // by value, where it is known
  ChangedTensors out_;
};

}  // namespace

std::set<std::string> ChangedTensors::gradient_ends() const {
  std::set<std::string> out;
  for (const auto& [name, change] : by_name) {
    if (change.is_read_back) out.insert(change.next);
    out.insert(change.earlier.begin(), change.earlier.end());
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
