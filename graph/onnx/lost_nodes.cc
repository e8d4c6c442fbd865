#include "graph/onnx/lost_nodes.h"

#include <algorithm>

#include "graph/onnx/call_groups.h"
#include "graph/onnx/export_signature.h"
#include "graph/onnx/exporter_names.h"

namespace shardrun::importer {
namespace {

bool is_detached(const std::string& value) {
  const std::string op = op_of(value);
  return op == "detach" || op == "detach_";
}

class Restorer {
 public:
  Restorer(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report)
      : nodes_(nodes),
        report_(report),
        groups_(call_groups(nodes)),
        names_(model, nodes),
        kinds_(signature_of(model.proto.graph()).kinds) {}

  void run() {
    for (const CallGroup& group : groups_) {
      restore_dropout(group);
      restore_detach(group);
    }
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

  /// Of one node each of whose inputs is an argument, the detached ones by their positions.
  std::vector<Read> reads_by_position(const CallGroup& group) const {
    const ::onnx::NodeProto& node = nodes_[group.nodes[0]].proto;
    const std::vector<std::string> values = group.call.values();
    std::vector<Read> out;
    if (group.nodes.size() > 1 || values.size() != static_cast<size_t>(node.input_size()))
      return out;
    for (int i = 0; i < node.input_size(); ++i) {
      if (is_detached(values[static_cast<size_t>(i)]))
        out.push_back({group.nodes[0], i, node.input(i)});
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

  /// What the group reads in place of each argument in `gone`; nothing if that is not clear.
  std::vector<Read> stand_ins(const CallGroup& group, const CallNames::Unmatched& unmatched) const {
    if (std::vector<Read> reads = reads_by_position(group); !reads.empty()) return reads;
    std::vector<Read> reads = unmatched.reads;
    for (const Read& read : unmatched.stored) {
      if (is_parameter(read.name)) reads.push_back(read);
    }
    std::vector<Read> out;
    if (unmatched.unread || reads.size() != unmatched.values.size()) return out;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (is_detached(unmatched.values[i])) out.push_back(reads[i]);
    }
    return out;
  }

  void restore_detach(const CallGroup& group) {
    const CallNames::Unmatched unmatched = names_.unmatched(group, nodes_);
    const auto gone = static_cast<size_t>(
        std::count_if(unmatched.values.begin(), unmatched.values.end(), is_detached));
    if (gone == 0) return;
    const std::vector<Read> reads = stand_ins(group, unmatched);
    if (reads.empty() && unmatched.reads.empty() && unmatched.stored.size() >= gone &&
        std::none_of(unmatched.stored.begin(), unmatched.stored.end(),
                     [&](const Read& read) { return is_parameter(read.name); }))
      return;  // constants
    SR_REQUIRE(
        reads.size() == gone, invalid_input, "'", group.call.result,
        "' was called with a detached value, and the optimiser of PyTorch's exporter took the "
        "detach() out: a gradient would flow where none did; export with "
        "torch.onnx.export(…, dynamo=True, optimize=False)");
    for (size_t i = 0; i < reads.size(); ++i) {
      auto* entry = insert("Identity", reads[i], str(group.call.result, ".detached_", i))
                        .add_metadata_props();
      entry->set_key(kFxNode);
      entry->set_value(
          "%detach : [] = call_function[target=torch.ops.aten.detach.default](args = "
          "(), kwargs = {})");
    }
    report_.restored["detach()"].push_back(group.call.result);
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
  std::map<size_t, std::vector<FlatNode>> before_;  // what is put in front of a node
};

}  // namespace

void restore_lost_nodes(const ModelFile& model, std::vector<FlatNode>& nodes,
                        ImportReport& report) {
  Restorer(model, nodes, report).run();
}

}  // namespace shardrun::importer
