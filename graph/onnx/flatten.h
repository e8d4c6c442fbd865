// Flatten: a graph's live nodes with model-local functions inlined.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/onnx/file/model_file.h"

namespace shardrun {
struct OpDef;
}

namespace shardrun::importer {

struct FlatNode {
  ::onnx::NodeProto proto;
  int64_t opset = 0;
  std::string label;  // "node 41 'Loop_7'", with the function's node behind it where inlined
  /// A user's op, else null; proto.op_type() is then its registered name, 'acme::Swish'.
  const OpDef* own = nullptr;
  int64_t place = -1;  // among the main graph's nodes; -1: of a function, a subgraph, or put in
};

/// The opset of the ai.onnx operators in the main graph; 0 if none is imported.
int64_t main_opset(const ::onnx::ModelProto& model);

/// Inlines functions. Nodes come in the file's order; what is in a function is named by the calls
/// of functions so far. Throws unsupported or invalid_input for foreign domains, functions that
/// call themselves or nest too deep, and floods of nodes.
class Flattener {
 public:
  /// Both outlive it.
  Flattener(const ::onnx::ModelProto& model, ImportBudget& budget);

  /// The nodes of a subgraph of a node of `opset`.
  std::vector<FlatNode> run(const ::onnx::GraphProto& graph, int64_t opset);
  /// The same of the main graph, whose nodes are moved out of it.
  std::vector<FlatNode> consume(::onnx::GraphProto& graph, int64_t opset);

 private:
  static std::string key(const std::string& domain, const std::string& name,
                         const std::string& overload);
  static std::string label(const ::onnx::GraphProto& graph, int i);
  void append(::onnx::NodeProto node, int64_t opset, std::string label, int64_t place = -1);
  void inline_call(const ::onnx::NodeProto& call, const ::onnx::FunctionProto& function,
                   const std::string& label);

  ImportBudget& budget_;
  const int64_t opset_;  // of the main graph
  std::map<std::string, const ::onnx::FunctionProto*> functions_;
  std::vector<const ::onnx::FunctionProto*> open_;
  std::vector<FlatNode> out_;
  int calls_ = 0;
};

/// Throws invalid_input unless every name is made once and before it is used; names that are
/// `outer` exist already. Subgraphs see the names around them.
void check_names(const std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph,
                 const std::function<bool(const std::string&)>& is_outer);

/// Drops nodes whose results neither a graph output nor a live node uses; `needed` names live, too.
void drop_dead(std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph,
               std::set<std::string> needed = {});

/// Names that a node reads, those read inside its subgraphs included.
std::vector<std::string> names_read(const ::onnx::NodeProto& node);

/// By the name of a value the node that makes it, as an index. Of outputs that are left out (""),
/// the last.
std::map<std::string, size_t> makers_of(const std::vector<FlatNode>& nodes);

/// Names that a subgraph's nodes and outputs read, its own included.
std::vector<std::string> names_read(const ::onnx::GraphProto& graph);

}  // namespace shardrun::importer
