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

/// Names that the gradient of the first output reaches.
std::set<std::string> reached_names(const std::vector<FlatNode>& nodes,
                                    const ::onnx::GraphProto& graph);

}  // namespace shardrun::importer
