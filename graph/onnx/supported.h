// Which operators import knows, and what may be left out where it does not.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

struct Lowering;

/// Throws unsupported, with what to do, if there is none for the node's operator and opset.
const Lowering& lowering_of(const FlatNode& node);

/// In training, nodes that neither the loss nor a changed tensor of the module needs: they are left
/// out where they cannot be imported, and with them the outputs that they make.
class BesideLoss {
 public:
  /// `roots`: names of the loss and of what tensors become. Of all other nodes none is needed.
  void look(const std::vector<FlatNode>& nodes, std::set<std::string> roots);

  bool holds(const FlatNode& node) const { return beside_.count(&node.proto) > 0; }
  /// Of these it reads one that was left out.
  bool reads_left_out(const FlatNode& node) const;
  void leave_out(const FlatNode& node, const std::string& why);
  bool is_left_out(const std::string& value) const { return left_out_.count(value) > 0; }
  /// "outputs 'a', 'b' are left out, …: node 3 'Det': …"; "" if none is.
  std::string note(const ::onnx::GraphProto& graph) const;

 private:
  std::set<const ::onnx::NodeProto*> beside_;
  std::set<std::string> left_out_;
  std::string why_;  // the first
};

/// Counts operators into the report. Throws unsupported, naming every operator that import does not
/// know, but for nodes beside the loss.
void check_supported(const std::vector<FlatNode>& nodes, const BesideLoss& beside,
                     ImportReport& report);

}  // namespace shardrun::importer
