// Model's inside: the training step and the validation step as Graphs.
#pragma once

#include "graph/graph.h"
#include "shardrun/shardrun.h"

namespace shardrun {

struct Model::Impl {
  std::string path;
  ModelOptions options;
  Graph train;       // forward, loss, backward, update
  Graph evaluation;  // forward and loss, without dropout; same parameters by name
  std::vector<std::string> notes;
  std::vector<ParameterInfo> parameters;
  double import_seconds = 0;  // processor time from the file to these graphs
};

}  // namespace shardrun
