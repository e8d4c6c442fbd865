// Nodes with graphs of their own, for tests.
#pragma once

#include <string>
#include <vector>

#include "onnx-ml.pb.h"

namespace shardrun::test {

inline ::onnx::NodeProto& add_node(::onnx::GraphProto& graph, const std::string& op,
                                   const std::vector<std::string>& in,
                                   const std::vector<std::string>& out) {
  auto* node = graph.add_node();
  node->set_op_type(op);
  for (const std::string& name : in) node->add_input(name);
  for (const std::string& name : out) node->add_output(name);
  return *node;
}

/// A graph as the node's attribute, with these inputs and outputs and no nodes.
inline ::onnx::GraphProto& subgraph(::onnx::NodeProto& node, const std::string& attribute,
                                    const std::vector<std::string>& in,
                                    const std::vector<std::string>& out) {
  auto* added = node.add_attribute();
  added->set_name(attribute);
  added->set_type(::onnx::AttributeProto::GRAPH);
  for (const std::string& name : in) added->mutable_g()->add_input()->set_name(name);
  for (const std::string& name : out) added->mutable_g()->add_output()->set_name(name);
  return *added->mutable_g();
}

}  // namespace shardrun::test
