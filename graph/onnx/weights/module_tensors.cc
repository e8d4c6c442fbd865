#include "graph/onnx/weights/module_tensors.h"

#include <algorithm>
#include <string_view>

#include "graph/onnx/exporter/call_groups.h"
#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"

namespace shardrun::importer {
namespace {

const std::string kBatches = "num_batches_tracked", kMean = "running_mean";

std::string owner(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }
Shape turned(const Shape& matrix) { return {matrix[1], matrix[0]}; }

/// The gates of a recurrent operator: which of PyTorch's each of ONNX's is. Both exporters put them
/// in order so.
const std::map<std::string, std::vector<int64_t>>& gates() {
  static const std::map<std::string, std::vector<int64_t>> out = {
      {"LSTM", {0, 3, 1, 2}},  // input, output, forget, cell of input, forget, cell, output
      {"GRU", {1, 0, 2}},      // update, reset, new of reset, update, new
      {"RNN", {0}}};
  return out;
}

class Mapper {
 public:
  Mapper(const ModelFile& model, const std::vector<FlatNode>& nodes, const Weights& weights,
         const std::map<std::string, std::string>& tied, WeightMap& map)
      : model_(model),
        nodes_(nodes),
        weights_(weights),
        tied_(tied),
        map_(map),
        signature_(signature_of(model.proto.graph())),
        names_(model, nodes) {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (int i = 0; i < nodes_[n].proto.input_size(); ++i)
        reads_[nodes_[n].proto.input(i)].push_back({n, i, nodes_[n].proto.input(i)});
    }
  }

  void run() {
    if (!signature_.kinds.empty()) {
      from_signature();
    } else if (model_.proto.producer_name() == "pytorch") {
      from_names();
    } else {
      for (const auto& [name, value] : map_.values) {
        if (value.kept) add_stored(name, name);
      }
      return;
    }
    map_.has_module = true;
  }

 private:
  void from_signature() {
    for (const auto& [name, kind] : signature_.kinds) {
      if (kind == "CONSTANT_TENSOR" || signature_.not_persistent.count(name) > 0) continue;
      if (last_name(name) == kBatches) {
        add_count(name);
      } else if (map_.values.count(name) > 0) {
        add_stored(name, name);
      } else if (const auto tie = tied_.find(name);
                 tie != tied_.end() && map_.values.count(tie->second) > 0) {
        add_stored(name, tie->second);
      } else if (const std::string why = add_folded(name); !why.empty()) {
        map_.missing.push_back({name, why});
      }
    }
  }

  /// The older exporter's initialisers are the module's tensors; '/enc/Constant_output_0' is none.
  static bool is_of_module(const std::string& name) {
    return !is_generated(name) && name.find('/') == std::string::npos;
  }

  void from_names() {
    for (const auto& [name, value] : map_.values) {
      if (is_of_module(name)) {
        add_stored(name, name);
        if (last_name(name) == kMean) add_count(owner(name) + kBatches);
        continue;
      }
      guesses_ = true;
      add_generated(name, value.type.shape);
      guesses_ = false;
    }
    for (const auto& [other, name] : tied_) {
      if (map_.values.count(other) == 0 && map_.values.count(name) > 0) add_stored(other, name);
    }
    for (const FlatNode& node : nodes_) {  // one of several equal weights that are kept as one
      if (node.proto.op_type() != "Identity" || node.proto.output_size() != 1) continue;
      const std::string& other = node.proto.output(0);
      const auto of = map_.values.find(node.proto.input(0));
      if (of != map_.values.end() && is_of_module(other) && is_of_module(of->first))
        add_stored(other, of->first);
    }
  }

  /// What the older exporter folded in evaluation mode: a module's step '/enc/fc/MatMul' reads
  /// 'onnx::MatMul_12', the transpose of its weight.
  void add_generated(const std::string& stored, const Shape& shape) {
    const auto reads = reads_.find(stored);
    const auto weight = weights_.by_name.find(stored);
    if (reads == reads_.end() || weight == weights_.by_name.end()) return;
    for (const Read& read : reads->second) {
      const ::onnx::NodeProto& node = nodes_[read.node].proto;
      const std::string module = module_of(node.name());
      if (module.empty()) continue;
      if (node.op_type() == "MatMul" && read.input == 1 && shape.size() == 2) {
        const std::string bias = bias_behind(node, shape[1]);
        // A bias of a module around it is that one's own, which the layer has from there.
        const bool own = !bias.empty() && !module.starts_with(owner(bias));
        add_stored(own ? weight_of_bias(bias) : module + ".weight", stored, true);
      } else if (gates().count(node.op_type()) > 0) {
        for (const std::string& name : recurrent_names(read, shape)) add_gates(name, stored);
      } else if (const char* leaf = leaf_of_channels(node, module); *leaf != '\0') {
        const Shape channels = {element_count(shape)};
        add_stored(str(module, ".", leaf), stored, false, &channels);
      } else {
        for (const std::string& lost : weight->second.lost_names)
          map_.missing.push_back({lost, str("the exporter computed '", stored, "' from it")});
      }
    }
  }

  /// The module's tensor that is added to a product, of as many elements; "" if there is none.
  std::string bias_behind(const ::onnx::NodeProto& product, int64_t elements) const {
    const auto reads = reads_.find(product.output(0));
    if (reads == reads_.end()) return "";
    for (const Read& read : reads->second) {
      const ::onnx::NodeProto& node = nodes_[read.node].proto;
      if (node.op_type() != "Add" || node.input_size() != 2) continue;
      const std::string& other = node.input(1 - read.input);
      const auto value = map_.values.find(other);
      if (value == map_.values.end() || !is_of_module(other) || !last_name(other).ends_with("bias"))
        continue;
      if (value->second.type.shape == Shape{elements}) return other;
    }
    return "";
  }

  /// "attn.in_proj_bias" -> "attn.in_proj_weight".
  static std::string weight_of_bias(const std::string& bias) {
    return bias.substr(0, bias.size() - std::string_view("bias").size()) + "weight";
  }

  /// "weight" or "bias" where a node scales or shifts channels by a tensor [C, 1, 1]: of a PReLU,
  /// or of a group normalisation, which is written as one of instances.
  const char* leaf_of_channels(const ::onnx::NodeProto& node, const std::string& module) const {
    if (node.op_type() == "PRelu") return "weight";
    const bool normalises = std::any_of(nodes_.begin(), nodes_.end(), [&](const FlatNode& other) {
      return other.proto.op_type() == "InstanceNormalization" &&
             module_of(other.proto.name()) == module;
    });
    if (!normalises) return "";
    return node.op_type() == "Mul" ? "weight" : node.op_type() == "Add" ? "bias" : "";
  }

  /// What the module calls the tensors in an operand of a recurrent operator: those of its layers
  /// are its weights in their order.
  std::vector<std::string> recurrent_names(const Read& read, const Shape& shape) const {
    const ::onnx::NodeProto& node = nodes_[read.node].proto;
    const std::string module = module_of(node.name());
    std::vector<std::string> layers;
    for (const FlatNode& other : nodes_) {
      const ::onnx::NodeProto& proto = other.proto;
      if (proto.op_type() != node.op_type() || module_of(proto.name()) != module) continue;
      if (std::find(layers.begin(), layers.end(), proto.input(1)) == layers.end())
        layers.push_back(proto.input(1));
    }
    const auto layer = std::find(layers.begin(), layers.end(), node.input(1)) - layers.begin();
    std::vector<std::string> out;
    for (const char* kind : read.input == 1   ? std::vector<const char*>{"weight_ih"}
                            : read.input == 2 ? std::vector<const char*>{"weight_hh"}
                            : read.input == 3 ? std::vector<const char*>{"bias_ih", "bias_hh"}
                                              : std::vector<const char*>{}) {
      for (int64_t direction = 0; direction < shape[0]; ++direction)
        out.push_back(str(module, ".", kind, "_l", layer, direction == 0 ? "" : "_reverse"));
    }
    return out;
  }

  void add_count(const std::string& name) {
    WeightMap::BatchCount count{name, owner(name) + kMean, 0};
    for (const Read& read : reads_[count.statistic])
      count.times += nodes_[read.node].proto.op_type() == "BatchNormalization";
    if (count.times == 0) count.times = 1;
    map_.batch_counts.push_back(std::move(count));
  }

  // ---- one tensor

  /// The value that holds an initialiser's numbers, and whether transposed.
  std::pair<std::string, bool> holder(const std::string& stored) const {
    const auto weight = weights_.by_name.find(stored);
    if (weight == weights_.by_name.end() || weight->second.tied_to.empty()) return {stored, false};
    return {weight->second.tied_to, weight->second.transposed};
  }

  DType stored_type(const std::string& stored) const { return map_.values.at(stored).stored; }

  void add(ModuleTensor tensor) {
    const bool fresh = std::none_of(map_.tensors.begin(), map_.tensors.end(),
                                    [&](const ModuleTensor& t) { return t.name == tensor.name; });
    tensor.is_guessed = guesses_;
    if (fresh) map_.tensors.push_back(std::move(tensor));
  }

  /// A tensor that has all of an initialiser's numbers, in its order or transposed.
  void add_stored(const std::string& name, const std::string& stored, bool transposed = false,
                  const Shape* shape = nullptr) {
    const Shape& own = map_.values.at(stored).type.shape;
    const auto [value, turns] = holder(stored);
    ValueRun run{value, 0, 0, element_count(own), transposed != turns};
    add({name, {stored_type(stored), shape ? *shape : transposed ? turned(own) : own}, {run}});
  }

  // ---- tensors that the newer exporter's optimiser folded into others

  /// Why it is not known how the tensor's numbers lie; empty where they were added.
  std::string add_folded(const std::string& name) {
    std::string why =
        "the file does not hold it: no node reads it, an optimiser took out what did, "
        "or it is another name of a tied weight";
    for (const auto& [stored, value] : map_.values) {
      if (stored == name || !names_.is_stored(stored) || !names_.stands_for(stored, name)) continue;
      if (add_gates(name, stored) || add_moved(name, stored)) return "";
      why = str("the exporter computed '", stored, "' ", to_string(value.type.shape),
                " from it, and the file does not say how");
    }
    return why;
  }

  /// A weight or bias of a recurrent layer, in one tensor with those of the other direction, its
  /// gates in another order.
  bool add_gates(const std::string& name, const std::string& stored) {
    const auto reads = reads_.find(stored);
    if (reads == reads_.end() || reads->second.size() != 1) return false;
    const Read& read = reads->second[0];
    const auto order = gates().find(nodes_[read.node].proto.op_type());
    if (order == gates().end() || read.input < 1 || read.input > 3) return false;
    const Shape& shape = map_.values.at(stored).type.shape;  // [directions, gates x H (x 2), …]
    const auto count = static_cast<int64_t>(order->second.size());
    const bool is_bias = read.input == 3;
    const bool recurrent = last_name(name).starts_with("bias_hh");
    const int64_t direction = name.ends_with("_reverse") ? 1 : 0;
    if (shape.size() != (is_bias ? 2U : 3U) || direction >= shape[0]) return false;
    const int64_t rows = shape[1] / (is_bias ? 2 : 1), width = is_bias ? 1 : shape[2];
    if (rows % count != 0) return false;
    const int64_t block = rows / count * width;
    int64_t from = direction * shape[1] * width + (is_bias && recurrent ? rows * width : 0);
    ModuleTensor tensor{
        name, {stored_type(stored), is_bias ? Shape{rows} : Shape{rows, width}}, {}};
    for (const int64_t gate : order->second) {
      tensor.runs.push_back({stored, from, gate * block, block, false});
      from += block;
    }
    add(std::move(tensor));
    return true;
  }

  /// A tensor that was moved as a whole.
  bool add_moved(const std::string& name, const std::string& stored) {
    static const std::set<std::string> turns = {"t", "transpose", "permute"};
    static const std::set<std::string> keeps = {"alias",  "clone",    "contiguous",
                                                "detach", "_to_copy", "lift_fresh_copy"};
    const Shape& shape = map_.values.at(stored).type.shape;
    bool transposed = false;
    for (const std::string& step : names_.sources_of(stored)) {
      if (step == name || (step.starts_with("val_") && step != stored)) continue;
      const std::string op = op_of(step);
      if (turns.count(op) > 0) {
        transposed = !transposed;
      } else if (step != stored || !step.starts_with("val_")) {
        if (keeps.count(op) == 0) return false;  // also another tensor of the module
      }
    }
    if (stored.starts_with("val_")) {
      switch (use_of(stored)) {
        case Use::product: transposed = !transposed; break;
        case Use::channels: {
          const Shape channels = {element_count(shape)};
          add_stored(name, stored, false, &channels);
          return !transposed;
        }
        case Use::other: return false;
      }
    }
    if (transposed && shape.size() != 2) return false;
    add_stored(name, stored, transposed);
    return true;
  }

  /// What the exporter did with a weight for the calls that read it: of a linear layer it
  /// transposes it, those of channels get dims of 1.
  enum class Use { product, channels, other };
  Use use_of(const std::string& stored) const {
    static const std::set<std::string> of_channels = {
        "aten.prelu",         "aten._prelu_kernel", "aten.group_norm", "aten.native_group_norm",
        "aten.instance_norm", "aten.batch_norm"};
    const auto reads = reads_.find(stored);
    if (reads == reads_.end()) return Use::other;
    std::set<Use> uses;
    for (const Read& read : reads->second) {
      const std::optional<FxCall> call = fx_call_of(nodes_[read.node].proto);
      const std::string target = call ? call->target : "";
      uses.insert(target == "aten.linear"         ? Use::product
                  : of_channels.count(target) > 0 ? Use::channels
                                                  : Use::other);
    }
    return uses.size() == 1 ? *uses.begin() : Use::other;
  }

  const ModelFile& model_;
  const std::vector<FlatNode>& nodes_;
  const Weights& weights_;
  const std::map<std::string, std::string>& tied_;
  WeightMap& map_;
  const ExportSignature signature_;
  const CallNames names_;
  std::map<std::string, std::vector<Read>> reads_;
  bool guesses_ = false;  // names of the tensors that are added
};

}  // namespace

void map_module(const ModelFile& model, const std::vector<FlatNode>& nodes, const Weights& weights,
                const std::map<std::string, std::string>& tied, WeightMap& map) {
  Mapper(model, nodes, weights, tied, map).run();
}

}  // namespace shardrun::importer
