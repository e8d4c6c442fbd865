#include "graph/onnx/exporter/lost_weights.h"

#include <algorithm>

#include "graph/onnx/exporter/call_groups.h"
#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"

namespace shardrun::importer {
namespace {

constexpr const char* kRemedy = "export with torch.onnx.export(…, dynamo=True, optimize=False)";

/// The optimiser's rules that made a node: "FuseBatchNormIntoConv, RemoveOptionalBiasFromConv".
std::string rules_of(const ::onnx::NodeProto& node) {
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() == "pkg.onnxscript.rewriter.rule_name") return entry.value();
  }
  return "";
}

class WeightRestorer {
 public:
  WeightRestorer(const ModelFile& model, std::vector<FlatNode>& nodes,
                 const std::map<std::string, std::string>& tied, const ImportOptions& options,
                 const std::function<bool(const std::string&)>& is_left_out, ImportReport& report)
      : model_(model),
        nodes_(nodes),
        tied_(tied),
        options_(options),
        is_left_out_(is_left_out),
        report_(report),
        kinds_(signature_of(model.proto.graph()).kinds),
        names_(model, nodes),
        groups_(call_groups(nodes)) {
    for (const StoredTensor& tensor : model.initialisers) stored_[tensor.name] = &tensor;
  }

  RestoredWeights run() {
    refuse_folded_norms();
    for (const CallGroup& group : groups_) {
      refuse_projected_lstm(group);
      restore_bias(group);
      if (options_.shared != ImportOptions::Shared::keep) {
        free_constants_of_norm(group);
        restore_merged(group);
        free_constants(group);
      }
      look_for_gone_steps(group);
    }
    note_restored("biases of zeros that the exporter removed train again: ", biases_);
    note_restored("weights that the exporter merged, being equal, are apart again: ", merged_);
    look_for_gone_parameters();
    find_shared();
    for (auto& [name, tensor] : restored_) out_.tensors.push_back(std::move(tensor));
    return std::move(out_);
  }

 private:
  // ---- batch normalisations

  /// The module that a batch normalisation's call belongs to, by its first tensor: "b" of
  /// "b.weight".
  std::string norm_of(const FxCall& call) const {
    for (const std::string& value : call.values()) {
      const std::string tensor = names_.tensor_of(value);
      if (const size_t dot = tensor.rfind('.'); dot != std::string::npos)
        return " '" + tensor.substr(0, dot) + "'";
    }
    return "";
  }

  static bool is_folded_norm(const FlatNode& node) {
    return rules_of(node.proto).find("FuseBatchNorm") != std::string::npos;
  }

  void refuse_folded_norms() {
    const FlatNode* first = nullptr;
    bool in_training = false;
    int count = 0;
    for (const FlatNode& node : nodes_) {
      if (!is_folded_norm(node)) continue;
      ++count;
      const std::optional<FxCall> call = fx_call_of(node.proto);
      const bool trains = call && batch_norm_trains(*call).value_or(false);
      if (first == nullptr || (trains && !in_training)) first = &node;
      in_training = in_training || trains;
      if (!call) continue;
      for (const std::string& value : call->values()) folded_.insert(names_.tensor_of(value));
    }
    if (first == nullptr) return;
    const std::optional<FxCall> call = fx_call_of(first->proto);
    const std::string weight = first->proto.input_size() > 1 ? first->proto.input(1) : "";
    const std::string what =
        str("'", weight, "' holds the batch normalisation", call ? norm_of(*call) : "",
            ", which the exporter folded into ", first->proto.op_type(),
            count > 1 ? str(" (one of ", count, ")") : "");
    SR_REQUIRE(!in_training, invalid_input, what,
               " though the model was in training mode: its weights and running statistics are "
               "gone; ",
               kRemedy);
    SR_REQUIRE(options_.mode != ImportOptions::Mode::train, invalid_input, what,
               "; --mode train cannot bring it back; ", kRemedy);
    out_.has_folded_norms = true;
    report_.notes.push_back(
        str(what, ", with its stored statistics: the model trains without it; ", kRemedy));
  }

  // ---- recurrent layers

  /// Of aten.lstm(x, states, weights, has_biases, layers, dropout, train, bidirectional, …) with
  /// proj_size the exporter takes the weights for those of a layer without: each direction's third
  /// matrix for the next direction's first.
  void refuse_projected_lstm(const CallGroup& group) const {
    const FxCall& call = group.call;
    const FxArgument* weights = call.target == "aten.lstm" ? call.find(2, "params") : nullptr;
    if (weights == nullptr) return;
    const size_t each = call.flag(3, "has_biases", true) ? 4 : 2;
    const double directions = call.flag(7, "bidirectional", false) ? 2 : 1;
    const double cells = call.number(4, "num_layers", 1) * directions;
    const size_t count = weights->items.size();
    SR_REQUIRE(count <= each || static_cast<double>(count) != cells * static_cast<double>(each + 1),
               invalid_input, "node '", nodes_[group.nodes[0]].proto.name(), "': '",
               names_.tensor_of(weights->items[each].value()),
               "' projects the states of an LSTM (proj_size), which PyTorch's exporters cannot "
               "write: the newer one leaves projections out and takes weights for others; write "
               "the steps out in the module (docs/onnx.md, 'LSTMs with a projection')");
  }

  // ---- biases

  bool has(const std::string& tensor) const {
    return stored_.count(tensor) > 0 || restored_.count(tensor) > 0;
  }

  /// Adds an initialiser, which stands for what the module calls `source`.
  void restore(StoredTensor tensor, const std::string& source) {
    names_.add_stored(tensor.name, source);
    const std::string name = tensor.name;
    restored_[name] = std::move(tensor);
  }

  void read_instead(size_t node, int input, const std::string& tensor) {
    if (nodes_[node].place >= 0) out_.inputs.push_back({nodes_[node].place, input, tensor});
    ::onnx::NodeProto& proto = nodes_[node].proto;
    while (proto.input_size() <= input) proto.add_input("");
    proto.set_input(input, tensor);
  }

  /// Channels of what a convolution or Gemm makes; 0 if the file does not say.
  int64_t channels_of(const ::onnx::NodeProto& node) const {
    const bool last = node.op_type() == "Gemm";
    for (const auto* list : {&model_.proto.graph().value_info(), &model_.proto.graph().output()}) {
      for (const auto& info : *list) {
        if (info.name() != node.output(0)) continue;
        const auto& shape = info.type().tensor_type().shape();
        const int axis = last ? shape.dim_size() - 1 : 1;
        return axis >= 0 && axis < shape.dim_size() ? shape.dim(axis).dim_value() : 0;
      }
    }
    return 0;
  }

  /// The bias that a product or convolution was called with; empty if there is none.
  std::string bias_of(const FxCall& call) const {
    static const std::map<std::string, size_t> positions = {
        {"aten.conv1d", 2},           {"aten.conv2d", 2},           {"aten.conv3d", 2},
        {"aten.conv_transpose1d", 2}, {"aten.conv_transpose2d", 2}, {"aten.conv_transpose3d", 2},
        {"aten.convolution", 2},      {"aten.linear", 2},           {"aten.addmm", 0}};
    const auto position = positions.find(call.target);
    const FxArgument* bias =
        position == positions.end() ? nullptr : call.find(position->second, "bias");
    return bias == nullptr ? "" : names_.tensor_of(bias->value());
  }

  void restore_bias(const CallGroup& group) {
    static const std::set<std::string> operators = {"Conv", "ConvTranspose", "Gemm"};
    const std::string bias = bias_of(group.call);
    if (bias.empty()) return;
    for (size_t n : group.nodes) {
      ::onnx::NodeProto& node = nodes_[n].proto;
      if (operators.count(node.op_type()) == 0 || node.input_size() != 2) continue;
      if (!has(bias)) {
        const int64_t channels = channels_of(node);
        if (channels <= 0) return;
        StoredTensor zeros;
        zeros.name = bias;
        zeros.type = {DType::f32, {channels}};
        zeros.stored = has(node.input(1)) ? tensor_at(node.input(1)).stored : DType::f32;
        zeros.data = Tensor({zeros.stored, {channels}});
        restore(std::move(zeros), bias);
        biases_.push_back(bias);
      }
      read_instead(n, node.input_size(), bias);
      return;
    }
  }

  // ---- merged weights

  void restore_merged(const CallGroup& group) {
    CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    std::erase_if(unmatched.stored, [&](const Read& read) {
      const std::set<std::string>& sources = names_.sources_of(read.name);
      return !is_float(tensor_at(read.name).type.dtype) ||
             std::none_of(sources.begin(), sources.end(),
                          [&](const std::string& source) { return kinds_.count(source) > 0; });
    });
    if (unmatched.tensors.empty() || unmatched.tensors.size() != unmatched.stored.size()) return;
    for (size_t i = 0; i < unmatched.tensors.size(); ++i)
      give_copy(unmatched.stored[i], unmatched.tensors[i]);
  }

  const StoredTensor& tensor_at(const std::string& name) const {
    const auto found = stored_.find(name);
    return found == stored_.end() ? restored_.at(name) : *found->second;
  }

  /// Has a node read what the module calls `tensor` instead of what it was merged with. A copy of a
  /// constant that was folded from another weight, a transpose say, is one folded from `tensor`.
  void give_copy(const Read& read, const std::string& tensor) {
    const bool owned = kinds_.count(read.name) > 0;
    std::string name = owned ? tensor : str(read.name, ".", tensor);
    if (!has(name)) {
      StoredTensor copy = tensor_at(read.name);
      copy.name = name;
      copy.metadata.clear();
      if (!owned) copy.metadata[kFoldedFrom] = "['" + tensor + "']";
      restore(std::move(copy), tensor);
      merged_.push_back(tensor);
    }
    read_instead(read.node, read.input, name);
  }

  /// Has a node read a constant of its own instead of what that was merged with.
  void free_constant(const Read& read) {
    StoredTensor copy = tensor_at(read.name);
    copy.name = str("val_", nodes_[read.node].proto.output(0), ".", read.input);
    copy.metadata.clear();
    const std::string name = copy.name;
    read_instead(read.node, read.input, name);
    restore(std::move(copy), name);
  }

  /// Constants of equal numbers are merged with weights, too: the ones and zeros of a normalisation
  /// that has no scale and bias of its own. Its operands are the call's first arguments.
  void free_constants_of_norm(const CallGroup& group) {
    if (!batch_norm_trains(group.call)) return;
    for (size_t n : group.nodes) {
      const ::onnx::NodeProto& node = nodes_[n].proto;
      if (node.op_type() != "BatchNormalization") continue;
      for (int i = 1; i < std::min(node.input_size(), 5); ++i) {
        const FxArgument* argument = group.call.find(static_cast<size_t>(i), "");
        if (argument != nullptr && argument->is_none() && kinds_.count(node.input(i)) > 0)
          free_constant({n, i, node.input(i)});
      }
    }
  }

  /// What a call that names no tensor reads of the module's is a constant of its own.
  void free_constants(const CallGroup& group) {
    const CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    if (!unmatched.tensors.empty() || !unmatched.values.empty() ||
        group.call.target.starts_with("aten.detach"))
      return;  // a value may be a weight that was moved or detached
    for (const Read& read : unmatched.stored) {
      if (kinds_.count(read.name) > 0 && is_float(tensor_at(read.name).type.dtype))
        free_constant(read);
    }
  }

  void note_restored(const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) report_.notes.push_back(what + listed(names, 3));
  }

  // ---- what is gone without a trace of its own

  /// x * 1 and x + 0 are taken out where the number is a single one, also if it was learned; of two
  /// equal layers with equal weights and the same input, one. Then a call names a value that
  /// nothing makes, and its node reads another.
  void look_for_gone_steps(const CallGroup& group) {
    static const std::set<std::string> with_parameters = {
        "add",    "sub",    "mul",    "div",         "rsub",      "layer_norm", "native_layer_norm",
        "linear", "addmm",  "mm",     "bmm",         "matmul",    "group_norm", "native_group_norm",
        "conv1d", "conv2d", "conv3d", "convolution", "embedding", "rms_norm",   "instance_norm"};
    if (is_folded_norm(nodes_[group.nodes[0]])) return;
    for (const std::string& value : group.call.values()) called_.insert(names_.tensor_of(value));
    const CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    for (const std::string& value : unmatched.values) {
      if (!names_.is_left(value) && reads_floats(unmatched.stored)) {
        gone_steps_.push_back(value);
        continue;
      }
      if (with_parameters.count(op_of(value)) == 0) continue;
      const std::vector<std::string> twins = read_by(group, op_of(value));
      if (!unmatched.reads.empty() || !twins.empty()) gone_steps_.push_back(value);
      for (const std::string& twin : twins) refuse_twin(value, twin);
    }
  }

  /// exp(w) is computed ahead, and of a w of zeros merged with other ones.
  bool reads_floats(const std::vector<Read>& stored) const {
    return std::any_of(stored.begin(), stored.end(), [&](const Read& read) {
      const StoredTensor& tensor = tensor_at(read.name);
      return is_float(tensor.type.dtype) && tensor.count() > 1;
    });
  }

  /// What the group reads of this op.
  std::vector<std::string> read_by(const CallGroup& group, const std::string& op) const {
    std::vector<std::string> out;
    for (size_t n : group.nodes) {
      for (const std::string& name : nodes_[n].proto.input()) {
        if (op_of(name) == op) out.push_back(name);
      }
    }
    return out;
  }

  /// A norm may have weights or none, and ones and zeros are the same to an optimiser: of two norms
  /// of one value it leaves one, whose weights then learn from both.
  void refuse_twin(const std::string& value, const std::string& twin) const {
    for (const CallGroup& group : groups_) {
      if (group.call.result != twin || op_of(twin).find("norm") == std::string::npos) continue;
      const std::vector<std::string> values = group.call.values();
      SR_REQUIRE(std::all_of(values.begin(), values.end(),
                             [&](const std::string& v) { return names_.tensor_of(v).empty(); }),
                 invalid_input, "'", value, "' was merged with '", twin,
                 "', which has weights, by the optimiser of PyTorch's exporter; ", kRemedy);
    }
  }

  void look_for_gone_parameters() {
    std::vector<std::string> unread, called;
    for (const auto& [name, kind] : kinds_) {
      if (kind != "PARAMETER" || names_.is_left(name) || tied_.count(name) > 0) continue;
      report_.gone.push_back(name);
      if (folded_.count(name) > 0 || is_left_out_(name)) continue;
      (called_.count(name) > 0 ? called : unread).push_back(name);
    }
    SR_REQUIRE(
        called.empty() || options_.shared == ImportOptions::Shared::keep, invalid_input,
        "calls in the export's metadata name ", listed(called),
        ", which the optimiser of PyTorch's exporter merged or took out, and it is not clear "
        "where: they would not train; ",
        kRemedy, ", or name those with --freeze that need not train");
    if (unread.empty()) return;
    SR_REQUIRE(gone_steps_.empty(), invalid_input, "the optimiser of PyTorch's exporter took out ",
               listed(gone_steps_), ", and of the parameters ", listed(unread),
               " nothing is left: they would not train; ", kRemedy,
               ", or name those with --freeze that need not train");
    if (!is_optimised()) return;
    report_.notes.push_back(
        str("nothing in the graph reads the parameters ", listed(unread),
            " of the export's signature (unused, or other names of tied weights)"));
  }

  bool is_optimised() const {
    return !biases_.empty() || !merged_.empty() ||
           !value_metadata(model_.proto.graph(), kFoldedFrom).empty() ||
           std::any_of(nodes_.begin(), nodes_.end(),
                       [](const FlatNode& node) { return !rules_of(node.proto).empty(); });
  }

  /// Initialisers that several nodes read, each called with that very tensor.
  void find_shared() {
    std::map<std::string, size_t> uses, named;
    for (const FlatNode& node : nodes_) {
      for (const std::string& name : node.proto.input()) ++uses[name];
    }
    for (const CallGroup& group : groups_) {
      std::set<std::string> tensors;
      for (const std::string& value : group.call.values()) tensors.insert(names_.tensor_of(value));
      for (size_t n : group.nodes) {
        for (const std::string& name : nodes_[n].proto.input()) named[name] += tensors.count(name);
      }
    }
    for (const auto& [name, count] : uses) {
      if (count > 1 && named[name] == count) out_.shared.insert(name);
    }
  }

  const ModelFile& model_;
  std::vector<FlatNode>& nodes_;
  const std::map<std::string, std::string>& tied_;
  const ImportOptions& options_;
  const std::function<bool(const std::string&)>& is_left_out_;
  ImportReport& report_;
  const std::map<std::string, std::string> kinds_;
  CallNames names_;
  const std::vector<CallGroup> groups_;
  std::map<std::string, const StoredTensor*> stored_;
  std::map<std::string, StoredTensor> restored_;
  std::set<std::string> folded_;  // of batch normalisations
  std::set<std::string> called_;  // tensors that other calls name
  std::vector<std::string> biases_, merged_, gone_steps_;
  RestoredWeights out_;
};

}  // namespace

RestoredWeights restore_lost_weights(const ModelFile& model, std::vector<FlatNode>& nodes,
                                     const std::map<std::string, std::string>& tied,
                                     const ImportOptions& options,
                                     const std::function<bool(const std::string&)>& is_left_out,
                                     ImportReport& report) {
  return WeightRestorer(model, nodes, tied, options, is_left_out, report).run();
}

}  // namespace shardrun::importer
