#include "graph/onnx/lost_nodes.h"

#include <algorithm>

#include "graph/onnx/fx_call.h"

namespace shardrun::importer {
namespace {

/// The nodes that one call became, in their order.
struct Group {
  FxCall call;
  std::vector<size_t> nodes;
};

std::vector<Group> groups_of(const std::vector<FlatNode>& nodes) {
  std::vector<Group> out;
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

class Restorer {
 public:
  Restorer(std::vector<FlatNode>& nodes, ImportReport& report)
      : nodes_(nodes), report_(report), groups_(groups_of(nodes)) {}

  void run() {
    for (const Group& group : groups_) restore_dropout(group);
    put_in_place();
  }

 private:
  /// The last of a group's nodes of this operator.
  std::optional<size_t> last(const Group& group, const std::string& op) const {
    const auto found = std::find_if(group.nodes.rbegin(), group.nodes.rend(),
                                    [&](size_t n) { return nodes_[n].proto.op_type() == op; });
    return found == group.nodes.rend() ? std::nullopt : std::optional(*found);
  }

  void restore_dropout(const Group& group) {
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
    FlatNode dropout;
    dropout.opset = nodes_[*product].opset;
    dropout.label = nodes_[*product].label;
    dropout.proto.set_op_type("Dropout");
    dropout.proto.set_name(group.call.result);
    auto* attribute = dropout.proto.add_attribute();
    attribute->set_name("ratio");
    attribute->set_type(::onnx::AttributeProto::FLOAT);
    attribute->set_f(static_cast<float>(ratio));
    const std::string weights = nodes_[*product].proto.input(0);
    dropout.proto.add_input(weights);
    dropout.proto.add_output(weights + ".dropped");
    nodes_[*product].proto.set_input(0, weights + ".dropped");
    before_[*product].push_back(std::move(dropout));
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
  const std::vector<Group> groups_;
  std::map<size_t, std::vector<FlatNode>> before_;  // what is put in front of a node
};

}  // namespace

void restore_lost_nodes(std::vector<FlatNode>& nodes, ImportReport& report) {
  Restorer(nodes, report).run();
}

}  // namespace shardrun::importer
