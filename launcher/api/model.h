// Model's inside: the training step and the validation step as Graphs.
#pragma once

#include "graph/graph.h"
#include "graph/onnx/import.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// What import is asked for. Throws invalid_input for words that it does not know.
ImportOptions import_options(const ModelOptions& options);

struct Model::Impl {
  std::string path;
  ModelOptions options;
  Graph train;       // forward, loss, backward, update
  Graph evaluation;  // forward and loss, without dropout; same parameters by name
  std::vector<std::string> notes;
  std::vector<ParameterInfo> parameters;
  /// What the graphs hold as constants, of which ModelOptions::weights gave other numbers.
  std::vector<std::string> given_constants;
  double import_seconds = 0;  // processor time from the file to these graphs
};

}  // namespace shardrun
