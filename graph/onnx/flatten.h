// Flatten: a graph's live nodes with model-local functions inlined.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/onnx/model_file.h"

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
};

/// The opset of the ai.onnx operators in the main graph; 0 if none is imported.
int64_t main_opset(const ::onnx::ModelProto& model);

/// Nodes of `graph`, the model's or a subgraph of a node of `opset`, with functions inlined, in the
/// file's order. `calls` counts those of all graphs: what is within is named by it. Throws
/// unsupported or invalid_input for foreign domains, functions that call themselves or nest too
/// deep, and floods of nodes.
std::vector<FlatNode> flatten(const ::onnx::ModelProto& model, const ::onnx::GraphProto& graph,
                              int64_t opset, int& calls);

/// Throws invalid_input unless every name is made once and before it is used; `outer` names exist
/// already. Subgraphs see the names around them.
void check_names(const std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph,
                 std::set<std::string> outer);

/// Drops nodes whose results neither a graph output nor a live node uses.
void drop_dead(std::vector<FlatNode>& nodes, const ::onnx::GraphProto& graph);

/// Names that a node reads, those read inside its subgraphs included.
std::vector<std::string> names_read(const ::onnx::NodeProto& node);

}  // namespace shardrun::importer
