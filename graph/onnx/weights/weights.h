// Weights: which initialisers train, which are one weight under two names, and which are two
// weights that an exporter merged into one.
#pragma once

#include "base/regex.h"
#include "graph/onnx/exporter/changed_tensors.h"
#include "graph/onnx/exporter/lost_weights.h"
#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// Whether a tensor is trained, and why or why not.
struct Training {
  bool is_parameter = false;
  bool trainable = false;
  bool is_frozen = false;  // by --freeze
  std::string why;
};

/// --train, --train-only and --freeze, which are searched in the names of parameters.
struct NamePatterns {
  Regexes train, train_only, freeze;
  bool trains_only;  // what train_only matches

  explicit NamePatterns(const ImportOptions& options)
      : train("--train", options.train),
        train_only("--train-only", options.train_only),
        freeze("--freeze", options.freeze),
        trains_only(!options.train_only.empty()) {}
  /// Applies them to a tensor of these names, its own first. Returns the name that one matched,
  /// empty if none did.
  std::string apply(const std::vector<std::string>& names, Training& training);
  /// Does --freeze match one of a tensor's names, or --train-only none?
  bool leave_out(const std::vector<std::string>& names);
};

struct Weight : Training {
  StoredTensor tensor;
  bool is_state = false;                 // a running statistic, or what forward() changes
  std::vector<std::string> lost_names;   // what it was called before the exporter folded it
  std::vector<std::string> other_names;  // what it is called, too, being tied
  std::string tied_to;      // not empty: this is that weight, reshaped to tensor.type.shape
  bool transposed = false;  // …after being transposed
};

/// Weights by name in `order`. May rename inputs of `nodes` (merged weights given back to their
/// users). `loss`: the output that is differentiated. Throws invalid_input for an export that would
/// train wrongly.
struct Weights {
  std::map<std::string, Weight> by_name;
  std::vector<std::string> order;
  bool kinds_are_guessed = false;  // the export does not say which are parameters
  ChangedTensors changed;
  std::vector<ChangedInput> inputs;       // that read copies of merged weights
  std::map<std::string, int64_t> copied;  // weights that a node of the main graph copied, by name
};
/// `tied`: tied_names(). `loss`: the output that is differentiated.
Weights decide_weights(const ModelFile& model, const RestoredWeights& restored,
                       const std::map<std::string, std::string>& tied, std::vector<FlatNode>& nodes,
                       const std::string& loss, const ImportOptions& options,
                       NamePatterns& patterns, ImportReport& report);

}  // namespace shardrun::importer
