// Which names of a model the gradient of its first output reaches.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// Operands that say what an operator does, such as the scales of a Resize, and are no numbers that
/// it computes with: import has to know them.
bool is_setting(const ::onnx::NodeProto& node, int i);

/// Is the node a Tensor.detach()? PyTorch's newer exporter writes an Identity, and keeps the call.
bool is_detach(const ::onnx::NodeProto& node);

/// Names that the gradient of the first output reaches.
std::set<std::string> reached_names(const std::vector<FlatNode>& nodes,
                                    const ::onnx::GraphProto& graph);

}  // namespace shardrun::importer
