// Every string of these messages that is a name.
#include "graph/onnx/exporter/printable_names.h"

#include <string>

#include "base/error.h"
#include "base/printable.h"

namespace shardrun::importer {
namespace {

constexpr size_t kMostOfName = 80;

void fix(std::string* name) {
  if (is_printable(*name)) return;
  SR_REQUIRE(name->find('\0') == std::string::npos, invalid_input, "name '",
             excerpt(*name, kMostOfName), "' has a byte of 0");
  *name = printable(*name);
}

template <class Names>
void fix_all(Names* names) {
  for (std::string& name : *names) fix(&name);
}

void fix_type(::onnx::TypeProto* type) {
  if (type->has_tensor_type() && type->tensor_type().has_shape()) {
    for (auto& dim : *type->mutable_tensor_type()->mutable_shape()->mutable_dim()) {
      if (dim.has_dim_param()) fix(dim.mutable_dim_param());
    }
  }
  if (type->has_sequence_type()) fix_type(type->mutable_sequence_type()->mutable_elem_type());
  if (type->has_optional_type()) fix_type(type->mutable_optional_type()->mutable_elem_type());
}

template <class Values>
void fix_values(Values* values) {
  for (auto& value : *values) {
    fix(value.mutable_name());
    if (value.has_type()) fix_type(value.mutable_type());
  }
}

void fix_graph(::onnx::GraphProto* graph);

template <class Attributes>
void fix_attributes(Attributes* attributes) {
  for (auto& attribute : *attributes) {
    fix(attribute.mutable_name());
    if (attribute.has_ref_attr_name()) fix(attribute.mutable_ref_attr_name());
    if (attribute.has_g()) fix_graph(attribute.mutable_g());
    if (attribute.has_t() && attribute.t().has_name()) fix(attribute.mutable_t()->mutable_name());
    for (auto& graph : *attribute.mutable_graphs()) fix_graph(&graph);
  }
}

template <class Nodes>
void fix_nodes(Nodes* nodes) {
  for (auto& node : *nodes) {
    if (node.has_name()) fix(node.mutable_name());
    if (node.has_domain()) fix(node.mutable_domain());
    fix(node.mutable_op_type());
    fix_all(node.mutable_input());
    fix_all(node.mutable_output());
    fix_attributes(node.mutable_attribute());
    for (auto& own : *node.mutable_device_configurations()) {
      fix(own.mutable_configuration_id());
      for (auto& spec : *own.mutable_sharding_spec()) fix(spec.mutable_tensor_name());
    }
  }
}

void fix_graph(::onnx::GraphProto* graph) {
  fix(graph->mutable_name());
  fix_nodes(graph->mutable_node());
  fix_values(graph->mutable_input());
  fix_values(graph->mutable_output());
  fix_values(graph->mutable_value_info());
  for (auto& tensor : *graph->mutable_initializer()) fix(tensor.mutable_name());
  for (auto& tensor : *graph->mutable_sparse_initializer())
    fix(tensor.mutable_values()->mutable_name());
}

}  // namespace

void make_names_printable(::onnx::ModelProto& model) {
  fix(model.mutable_producer_name());
  for (auto& opset : *model.mutable_opset_import()) fix(opset.mutable_domain());
  for (auto& configuration : *model.mutable_configuration()) fix(configuration.mutable_name());
  fix_graph(model.mutable_graph());
  for (auto& function : *model.mutable_functions()) {
    fix(function.mutable_name());
    fix(function.mutable_domain());
    fix_all(function.mutable_input());
    fix_all(function.mutable_output());
    fix_all(function.mutable_attribute());
    fix_attributes(function.mutable_attribute_proto());
    fix_nodes(function.mutable_node());
    fix_values(function.mutable_value_info());
    for (auto& opset : *function.mutable_opset_import()) fix(opset.mutable_domain());
  }
}

}  // namespace shardrun::importer
