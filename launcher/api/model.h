// Model's inside: the training step and the validation step as Graphs.
#pragma once

#include <functional>

#include "graph/graph.h"
#include "graph/onnx/import.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// Samples, where nothing says how many.
inline constexpr int64_t kDefaultBatch = 8;

/// What import is asked for. Throws invalid_input for words that it does not know.
ImportOptions import_options(const ModelOptions& options);

/// Is a batch size still free: does an input's first dim take any that nothing else binds?
bool takes_any_batch(const OnnxFile& file, ModelOptions options);
/// Throws invalid_input for numbers and words that no model takes.
void check_model_options(const ModelOptions& options);
/// Finds ModelOptions::weights, where there are any. `first`: on rank 0, which looks at all of
/// them.
void take_weights(ModelOptions& options, ImportOptions& import, bool first);

struct Model::Impl {
  OnnxModel onnx;
  std::string path;         // its own
  ModelOptions options;     // with what was assumed or follows: clip, batch, accumulate
  Graph train;              // forward, loss, backward, update; or the forward pass alone
  Graph evaluation;         // forward and loss, without dropout; same parameters by name
  std::string no_training;  // why `train` is the forward pass alone; "": it is not
  std::vector<std::string> notes;
  std::vector<ParameterInfo> parameters;
  /// What the file calls the outputs: of `train` where that is a forward pass, of `evaluation` with
  /// ModelOptions::keep_outputs.
  std::vector<std::string> outputs;
  /// What the graphs hold as constants, of which ModelOptions::weights gave other numbers.
  std::vector<std::string> given_constants;
  Annotations annotations;         // of the file, unchecked
  std::vector<PlacedNode> placed;  // its nodes, by names that `train` has
  double import_seconds = 0;       // processor time from the file to these graphs
};

/// Throws invalid_input where the model's step is the forward pass alone. `call`: who asks, for the
/// model to be `done`.
void require_trains(const char* call, const char* done, const Model::Impl& model);

/// `build` on rank 0, then on every other process, and a look whether all got the same. `first`:
/// before the others, for which rank 0 looks at what takes long.
Model build_on_all(World& world,
                   const std::function<std::unique_ptr<Model::Impl>(bool first)>& build);

}  // namespace shardrun
