// Loss output: which output of a model is its loss.
#pragma once

#include <string>

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

struct LossOutput {
  std::string name;     // of the output that is differentiated
  bool is_own = false;  // it is the loss itself; else one is computed on it, the first output
  std::string note;     // why this one, where there are others
};

/// The output that the options name, else the first if it is a floating scalar, else the only one
/// that is, else the only one of these called "loss". A tensor of the module that is returned,
/// changed or not, does not count. Throws invalid_input if there is no output of that name, or none
/// of several is distinguished.
LossOutput find_loss_output(const ::onnx::GraphProto& graph, const std::vector<FlatNode>& nodes,
                            const ImportOptions& options);

}  // namespace shardrun::importer
