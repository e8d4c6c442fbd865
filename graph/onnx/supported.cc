#include "graph/onnx/supported.h"

#include <algorithm>
#include <map>

#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/lower/advice.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

bool is_supported(const FlatNode& node) {
  if (node.own != nullptr) return true;
  const Lowering* lowering = find_lowering(node.proto.op_type());
  return lowering != nullptr && lowering->since <= node.opset;
}

/// `others`: "; nor are RoiAlign (2 nodes)".
[[noreturn]] void refuse(const FlatNode& node, const std::string& others) {
  const std::string& op = node.proto.op_type();
  if (const Lowering* lowering = find_lowering(op)) {
    fail(ErrorKind::unsupported, node.label, ": op ", op, " of opset ", node.opset,
         " is not supported; it is from opset ", lowering->since, " on", others,
         "; export with opset 13 to 28");
  }
  fail(ErrorKind::unsupported, node.label, ": op ", op, " (opset ", node.opset,
       ") is not supported", others, advice_for(op));
}

}  // namespace

const Lowering& lowering_of(const FlatNode& node) {
  if (!is_supported(node)) refuse(node, "");
  return *find_lowering(node.proto.op_type());
}

void BesideLoss::look(const std::vector<FlatNode>& nodes, std::set<std::string> roots) {
  beside_.clear();
  for (size_t i = nodes.size(); i-- > 0;) {
    const auto& outputs = nodes[i].proto.output();
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](const std::string& name) { return roots.count(name) > 0; })) {
      for (const std::string& name : names_read(nodes[i].proto)) roots.insert(name);
    } else {
      beside_.insert(&nodes[i].proto);
    }
  }
}

bool BesideLoss::reads_left_out(const FlatNode& node) const {
  if (left_out_.empty()) return false;
  const std::vector<std::string> read = names_read(node.proto);
  return std::any_of(read.begin(), read.end(),
                     [&](const std::string& name) { return is_left_out(name); });
}

void BesideLoss::leave_out(const FlatNode& node, const std::string& why) {
  if (why_.empty()) why_ = why.substr(0, why.find('\n'));
  for (const std::string& name : node.proto.output()) {
    if (!name.empty()) left_out_.insert(name);
  }
}

std::string BesideLoss::note(const ::onnx::GraphProto& graph) const {
  std::vector<std::string> outputs;
  for (const auto& output : graph.output()) {
    if (is_left_out(output.name())) outputs.push_back(output.name());
  }
  return outputs.empty() ? ""
                         : str("outputs ", listed(outputs),
                               " are left out, for the loss does not need them: ", why_);
}

void check_supported(const std::vector<FlatNode>& nodes, const BesideLoss& beside,
                     ImportReport& report) {
  const FlatNode* first = nullptr;
  std::map<std::string, int> missing;
  for (const FlatNode& node : nodes) {
    ++report.operators[node.proto.op_type()];
    if (is_supported(node) || beside.holds(node)) continue;
    if (first == nullptr) first = &node;
    ++missing[node.proto.op_type()];
  }
  if (first == nullptr) return;
  std::string others;
  for (const auto& [name, count] : missing) {
    if (name != first->proto.op_type())
      others += str(others.empty() ? "; nor are " : ", ", name, " (", count, " nodes)");
  }
  refuse(*first, others);
}

}  // namespace shardrun::importer
