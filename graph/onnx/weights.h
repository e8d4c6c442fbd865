// Weights: which initialisers train, which are one weight under two names, and which are two
// weights that an exporter merged into one.
#pragma once

#include "base/regex.h"
#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"
#include "graph/onnx/lost_weights.h"

namespace shardrun::importer {

/// --train and --freeze, which are searched in the names of parameters.
struct NamePatterns {
  Regexes train, freeze;

  explicit NamePatterns(const ImportOptions& options)
      : train("--train", options.train), freeze("--freeze", options.freeze) {}
  void apply(const std::string& name, bool& is_parameter, bool& trainable, std::string& why);
};

struct Weight {
  StoredTensor tensor;
  bool is_parameter = false;
  bool trainable = false;
  bool is_statistic = false;  // a running mean or variance that training moves
  std::string why;
  std::vector<std::string> lost_names;  // what it was called before the exporter folded it
  std::string tied_to;      // not empty: this is that weight, reshaped to tensor.type.shape
  bool transposed = false;  // …after being transposed
};

/// Weights by name in `order`. May rename inputs of `nodes` (merged weights given back to their
/// users). Throws invalid_input for an export that would train wrongly.
struct Weights {
  std::map<std::string, Weight> by_name;
  std::vector<std::string> order;
  bool kinds_are_guessed = false;  // the export does not say which are parameters
};
Weights decide_weights(const ModelFile& model, const RestoredWeights& restored,
                       std::vector<FlatNode>& nodes, const ImportOptions& options,
                       NamePatterns& patterns, ImportReport& report);

}  // namespace shardrun::importer
