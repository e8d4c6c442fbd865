#include "graph/onnx/exporter/lost_nodes.h"

#include <algorithm>
#include <functional>

#include "graph/onnx/exporter/call_groups.h"
#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/file/tensor_contents.h"

namespace shardrun::importer {
namespace {

bool is_detached(const std::string& value) {
  const std::string op = op_of(value);
  return op == "detach" || op == "detach_";
}

/// The numbers that the optimiser made of torch.hamming_window(): it computes the operator
/// HammingWindow ahead, which has 25/46 and 21/46, where PyTorch has 0.54 and 0.46.
class HammingRestorer {
 public:
  HammingRestorer(ModelFile& model, const std::vector<FlatNode>& nodes, ImportReport& report)
      : model_(model),
        report_(report),
        groups_(call_groups(nodes)),
        names_(model, nodes),
        kinds_(signature_of(model.proto.graph()).kinds) {
    for (const FlatNode& node : nodes) {
      for (const std::string& name : names_read(node.proto)) read_.insert(name);
    }
    for (const CallGroup& group : groups_) {
      const std::vector<std::string> values = group.call.values();
      if (std::none_of(values.begin(), values.end(), [&](const auto& v) { return is_window(v); }))
        continue;
      for (size_t n : group.nodes)
        called_.insert(nodes[n].proto.input().begin(), nodes[n].proto.input().end());
    }
  }

  void run() {
    if (groups_.empty()) return;
    for (StoredTensor& tensor : model_.initialisers) {
      if (!is_float(tensor.type.dtype) || read_.count(tensor.name) == 0) continue;
      const std::set<std::string>& sources = names_.sources_of(tensor.name);
      const auto source = std::find_if(sources.begin(), sources.end(),
                                       [&](const std::string& name) { return is_window(name); });
      const bool is_the_modules = kinds_.count(tensor.name) > 0;
      if (source == sources.end() && (is_the_modules || called_.count(tensor.name) == 0)) continue;
      if (is_hamming_window(tensor))
        restore(tensor);
      else if (source != sources.end())
        refuse(tensor, *source);
    }
  }

 private:
  /// A result of the call, and no tensor of the module's of that name.
  bool is_window(const std::string& name) const {
    return op_of(name) == "hamming_window" && kinds_.count(name) == 0;
  }

  /// 25/46 - 21/46 c becomes 0.54 - 0.46 c.
  void restore(StoredTensor& tensor) {
    constexpr double kSlope = 0.46 * 46 / 21, kOffset = 0.54 - kSlope * 25 / 46;
    const Tensor x = tensor.load();
    std::vector<double> numbers(static_cast<size_t>(x.count()), 0.0);
    for (int64_t i = 0; i < x.count(); ++i) {
      if (x.at(i) != 0) numbers[static_cast<size_t>(i)] = kOffset + kSlope * x.at(i);
    }
    tensor.data = convert(Tensor::from(tensor.type.shape, numbers, DType::f64), tensor.type.dtype);
    tensor.stored = tensor.type.dtype;
    tensor.file = nullptr;
    tensor.offset = 0;
    report_.restored["alpha=0.54"].push_back(tensor.name);
  }

  /// Not where no signature tells whether a buffer has the name.
  void refuse(const StoredTensor& tensor, const std::string& source) const {
    SR_REQUIRE(kinds_.empty(), invalid_input, "'", tensor.name, "' was computed from '", source,
               "', a Hamming window, by the optimiser of PyTorch's exporter: it takes 25/46 for "
               "the 0.54 of torch.hamming_window(), and what was computed from it cannot be put "
               "right; export with torch.onnx.export(…, dynamo=True, optimize=False), or make the "
               "window in the module's constructor and register it as a buffer");
  }

  ModelFile& model_;
  ImportReport& report_;
  const std::vector<CallGroup> groups_;
  const CallNames names_;
  const std::map<std::string, std::string> kinds_;
  std::set<std::string> read_;    // by any node
  std::set<std::string> called_;  // by nodes of calls that name a Hamming window
};

class NodeRestorer {
 public:
  NodeRestorer(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report)
      : nodes_(nodes),
        report_(report),
        groups_(call_groups(nodes)),
        names_(model, nodes),
        kinds_(signature_of(model.proto.graph()).kinds),
        model_(model) {}

  void run() {
    if (groups_.empty() && model_.proto.producer_name() == "pytorch") restore_padding();
    find_drawn();
    find_learnt();
    for (const CallGroup& group : groups_) {
      restore_dropout(group);
      restore_detach(group);
      restore_draws(group);
      find_epsilons(group);
      find_clones(group);
    }
    note_epsilons();
    note_clones();
    put_in_place();
  }

 private:
  /// The last of a group's nodes of this operator.
  std::optional<size_t> last(const CallGroup& group, const std::string& op) const {
    const auto found = std::find_if(group.nodes.rbegin(), group.nodes.rend(),
                                    [&](size_t n) { return nodes_[n].proto.op_type() == op; });
    return found == group.nodes.rend() ? std::nullopt : std::optional(*found);
  }

  /// A node of one operand in front of another's input.
  ::onnx::NodeProto& insert(const std::string& op, const Read& at, const std::string& result) {
    FlatNode node;
    node.opset = nodes_[at.node].opset;
    node.label = nodes_[at.node].label;
    node.proto.set_op_type(op);
    node.proto.set_name(result);
    node.proto.add_input(at.name);
    node.proto.add_output(result);
    before_[at.node].push_back(std::move(node));
    nodes_[at.node].proto.set_input(at.input, result);
    return before_[at.node].back().proto;
  }

  void restore_padding() {
    std::map<std::string, int64_t> padded;
    for (const StoredTensor& tensor : model_.initialisers) {
      if (!is_float(tensor.type.dtype)) continue;
      if (const auto row = row_of_zeros(tensor)) padded[tensor.name] = *row;
    }
    for (FlatNode& node : nodes_) {
      const auto row = padded.find(node.proto.input_size() > 0 ? node.proto.input(0) : "");
      if (node.proto.op_type() != "Gather" || row == padded.end()) continue;
      note_call(node.proto, "embedding", str("%table, %rows, ", row->second));
      report_.restored[str("padding_idx=", row->second, " (its row is zeros)")].push_back(
          row->first);
    }
  }

  static void note_call(::onnx::NodeProto& node, const std::string& op, const std::string& args) {
    auto* entry = node.add_metadata_props();
    entry->set_key(kFxNode);
    entry->set_value("%call : [] = call_function[target=torch.ops.aten." + op +
                     ".default](args = (" + args + "), kwargs = {})");
  }

  void restore_dropout(const CallGroup& group) {
    const double ratio = attention_dropout(group.call);
    if (!(ratio > 0 && ratio < 1) || last(group, "Dropout") || last(group, "Attention")) return;
    const auto softmax = last(group, "Softmax"), product = last(group, "MatMul");
    if (!softmax || !product || *softmax > *product) {
      report_.notes.push_back(
          str("dropout_p=", ratio, " of the attention '", group.call.result,
              "' is not applied, for its nodes are not those of a softmax and a product; export "
              "it as softmax and dropout (attn_implementation=\"eager\")"));
      return;
    }
    const std::string weights = nodes_[*product].proto.input(0);
    auto& dropout = insert("Dropout", {*product, 0, weights}, group.call.result + ".dropped");
    auto* attribute = dropout.add_attribute();
    attribute->set_name("ratio");
    attribute->set_type(::onnx::AttributeProto::FLOAT);
    attribute->set_f(static_cast<float>(ratio));
  }

  /// What a group reads in place of an argument that nothing makes.
  struct StandIn {
    std::string value;
    Read read;
  };
  using Wanted = std::function<bool(const std::string& value)>;

  /// Of one node each of whose inputs is an argument, by their positions.
  std::vector<StandIn> stand_ins_by_position(const CallGroup& group, const Wanted& wanted) const {
    const ::onnx::NodeProto& node = nodes_[group.nodes[0]].proto;
    const std::vector<std::string> values = group.call.values();
    std::vector<StandIn> out;
    if (group.nodes.size() > 1 || values.size() != static_cast<size_t>(node.input_size()))
      return out;
    for (int i = 0; i < node.input_size(); ++i) {
      const std::string& value = values[static_cast<size_t>(i)];
      if (wanted(value)) out.push_back({value, {group.nodes[0], i, node.input(i)}});
    }
    return out;
  }

  bool is_parameter(const std::string& stored) const {
    const std::set<std::string>& sources = names_.sources_of(stored);
    return std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
      const auto kind = kinds_.find(source);
      return kind != kinds_.end() && kind->second == "PARAMETER";
    });
  }

  /// Of the group's unmatched arguments that are wanted; nothing if it is not clear.
  std::vector<StandIn> stand_ins(const CallGroup& group, const CallNames::Unmatched& unmatched,
                                 const Wanted& wanted) const {
    const auto is_gone = [&](const std::string& value) {
      const auto& gone = unmatched.values;
      return std::find(gone.begin(), gone.end(), value) != gone.end() && wanted(value);
    };
    if (auto by_position = stand_ins_by_position(group, is_gone); !by_position.empty())
      return by_position;
    std::vector<Read> reads = unmatched.reads;
    for (const Read& read : unmatched.stored) {
      if (is_parameter(read.name)) reads.push_back(read);
    }
    std::vector<StandIn> out;
    if (unmatched.unread || reads.size() != unmatched.values.size()) return out;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (wanted(unmatched.values[i])) out.push_back({unmatched.values[i], reads[i]});
    }
    return out;
  }

  void restore_detach(const CallGroup& group) {
    const CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    const auto gone = static_cast<size_t>(
        std::count_if(unmatched.values.begin(), unmatched.values.end(), is_detached));
    if (gone == 0) return;
    const std::vector<StandIn> found = stand_ins(group, unmatched, is_detached);
    if (found.empty() && unmatched.reads.empty() && unmatched.stored.size() >= gone &&
        std::none_of(unmatched.stored.begin(), unmatched.stored.end(),
                     [&](const Read& read) { return is_parameter(read.name); }))
      return;  // constants
    SR_REQUIRE(
        found.size() == gone, invalid_input, "'", group.call.result,
        "' was called with a detached value, and the optimiser of PyTorch's exporter took the "
        "detach() out: a gradient would flow where none did; export with "
        "torch.onnx.export(…, dynamo=True, optimize=False)");
    for (size_t i = 0; i < found.size(); ++i)
      note_call(insert("Identity", found[i].read, str(group.call.result, ".detached_", i)),
                "detach", "");
    report_.restored["detach()"].push_back(group.call.result);
  }

  /// A root, a logarithm or a quotient of a sum that nothing makes: the optimiser took the other
  /// summand for 0. Of a sum that was merged with an equal one, that one is read.
  void find_epsilons(const CallGroup& group) {
    static const std::set<std::string> near_zero = {"aten.rsqrt", "aten.sqrt", "aten.log",
                                                    "aten.reciprocal", "aten.div"};
    if (near_zero.count(group.call.target) == 0) return;
    const auto is_sum = [](const std::string& value) { return op_of(value) == "add"; };
    for (const StandIn& at : stand_ins(group, names_.unmatched(group, nodes_), is_sum)) {
      if (!is_sum(at.read.name)) epsilons_.push_back(group.call.result);
    }
  }

  void note_epsilons() {
    note_taken_out(epsilons_, "a sum",
                   ": it takes numbers up to 1e-8 for 0, and so an epsilon as small is gone");
  }

  void note_taken_out(const std::vector<std::string>& calls, const std::string& what,
                      const std::string& loss) {
    if (calls.empty()) return;
    report_.notes.push_back(
        str("'", calls[0], "'",
            calls.size() > 1 ? str(" and ", calls.size() - 1, " more were") : " was",
            " called with ", what, " that the optimiser of PyTorch's exporter took out", loss,
            "; export with torch.onnx.export(…, dynamo=True, optimize=False)"));
  }

  /// Values that depend on a parameter, and which of them lie in memory otherwise than they are
  /// read.
  void find_learnt() {
    static const std::set<std::string> views = {"Transpose", "Slice", "Split", "Expand", "Gather"};
    for (const FlatNode& node : nodes_) {
      const auto& read = node.proto.input();
      if (std::none_of(read.begin(), read.end(), [&](const std::string& name) {
            return learnt_.count(name) > 0 || (names_.is_stored(name) && is_parameter(name));
          }))
        continue;
      for (const std::string& name : node.proto.output())
        learnt_[name] = views.count(node.proto.op_type()) > 0;
    }
  }

  /// x.detach().clone() is two nodes that change nothing. Of both being gone only the latter shows.
  /// contiguous() is a clone(), too, but of a view.
  void find_clones(const CallGroup& group) {
    const auto is_clone = [](const std::string& value) { return op_of(value) == "clone"; };
    for (const StandIn& at : stand_ins(group, names_.unmatched(group, nodes_), is_clone)) {
      const auto made = learnt_.find(at.read.name);
      const bool is_stored = names_.is_stored(at.read.name) && is_parameter(at.read.name);
      if (is_stored || (made != learnt_.end() && !made->second))
        clones_.push_back(group.call.result);
    }
  }

  void note_clones() {
    note_taken_out(clones_, "a clone()",
                   "; if it was one of a detached value, the detach() is gone, too, and a gradient "
                   "flows where none did");
  }

  static bool draws(const ::onnx::NodeProto& node) {
    return node.op_type() == "Dropout" || node.op_type() == "Bernoulli" ||
           node.op_type().starts_with("Random");
  }

  /// Values that depend on random numbers, and of those that are drawn themselves, the node.
  void find_drawn() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const ::onnx::NodeProto& node = nodes_[n].proto;
      const bool depends = std::any_of(node.input().begin(), node.input().end(),
                                       [&](const auto& name) { return drawn_.count(name) > 0; });
      if (!depends && !draws(node)) continue;
      for (const std::string& name : node.output()) drawn_[name] = n;
    }
  }

  /// The ops of values that depend on random numbers and that a group reads more often than its
  /// call names them.
  std::set<std::string> drawn_ops(const CallGroup& group) const {
    std::map<std::string, int> reads;
    for (size_t n : group.nodes) {
      for (const std::string& name : nodes_[n].proto.input()) reads[name] += drawn_.count(name) > 0;
    }
    for (size_t n : group.nodes) {
      for (const std::string& name : nodes_[n].proto.output()) reads.erase(name);
    }
    for (const std::string& value : group.call.values()) --reads[value];
    std::set<std::string> out;
    for (const auto& [name, count] : reads) {
      if (count > 0) out.insert(op_of(name));
    }
    return out;
  }

  /// Two dropouts of one value, or two masks of one shape, are equal nodes, of which the optimiser
  /// leaves one: "getitem_2" of a call's arguments is made by none, and "getitem" is read instead.
  void restore_draws(const CallGroup& group) {
    const CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    const std::set<std::string> ops = drawn_ops(group);
    const auto is_merged = [&](const std::string& value) { return ops.count(op_of(value)) > 0; };
    const auto gone = static_cast<size_t>(
        std::count_if(unmatched.values.begin(), unmatched.values.end(), is_merged));
    if (gone == 0) return;
    std::vector<StandIn> found = stand_ins(group, unmatched, is_merged);
    std::erase_if(found, [&](const StandIn& at) {
      const auto made = drawn_.find(at.read.name);
      return made == drawn_.end() || !draws(nodes_[made->second].proto);
    });
    SR_REQUIRE(
        found.size() == gone, invalid_input, "'", group.call.result,
        "' was called with random numbers of its own, and the optimiser of PyTorch's exporter "
        "took others in their place; export with torch.onnx.export(…, dynamo=True, "
        "optimize=False)");
    for (const StandIn& at : found) {
      if (again_.insert(at.value).second) {
        FlatNode copy = nodes_[drawn_.at(at.read.name)];
        copy.place = -1;
        for (std::string& name : *copy.proto.mutable_output())
          name = name == at.read.name ? at.value : at.value + "/" + name;
        copy.proto.set_name(at.value);
        before_[group.nodes[0]].push_back(std::move(copy));
        report_.restored["random numbers of its own"].push_back(at.value);
      }
      nodes_[at.read.node].proto.set_input(at.read.input, at.value);
    }
  }

  void put_in_place() {
    if (before_.empty()) return;
    std::vector<FlatNode> out;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (FlatNode& node : before_[n]) out.push_back(std::move(node));
      out.push_back(std::move(nodes_[n]));
    }
    nodes_ = std::move(out);
  }

  std::vector<FlatNode>& nodes_;
  ImportReport& report_;
  const std::vector<CallGroup> groups_;
  const CallNames names_;
  const std::map<std::string, std::string> kinds_;
  const ModelFile& model_;
  std::map<std::string, size_t> drawn_;  // what depends on random numbers -> the node that makes it
  std::set<std::string> again_;          // values that are drawn again
  std::vector<std::string> epsilons_;    // results of calls whose epsilon is gone
  std::map<std::string, bool> learnt_;   // what depends on parameters -> is it a view?
  std::vector<std::string> clones_;      // results of calls whose argument's clone() is gone
  std::map<size_t, std::vector<FlatNode>> before_;  // what is put in front of a node
};

}  // namespace

void restore_hamming_windows(ModelFile& model, const std::vector<FlatNode>& nodes,
                             ImportReport& report) {
  HammingRestorer(model, nodes, report).run();
}

void restore_lost_nodes(const ModelFile& model, std::vector<FlatNode>& nodes,
                        ImportReport& report) {
  NodeRestorer(model, nodes, report).run();
}

}  // namespace shardrun::importer
