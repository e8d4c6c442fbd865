// The passes from an imported forward Graph to the training step and the validation Graph.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"

namespace shardrun {

struct TrainingStep {
  Graph train;       // forward, loss, backward, update
  Graph evaluation;  // forward and loss, without dropout; the same parameters by name
  Recognised recognised;
  std::string loss_note;               // of attach_loss
  std::vector<std::string> unreached;  // parameters that were frozen: the loss does not see them
};

struct TrainingStepOptions {
  std::optional<LossKind> loss;   // as attach_loss takes it
  std::string first_output = {};  // its name in the file, for the note about the loss
  OptimizerOptions optimizer;
  bool bf16 = false;
  bool cut_keys = false;  // attention in parts whose keys can be cut (split_attention)
  /// `evaluation` keeps the model's outputs, under these names; empty: it has none.
  std::vector<std::string> outputs;
  /// The targets of an evaluation that the test has of its own (measure_test_too). Null: none.
  std::function<std::vector<std::string>(const Graph&)> test_targets = nullptr;

  std::string stop_after = {};  // the last pass that runs; "": all of them
  std::function<void(std::string_view pass, const TrainingStep& made)> after = nullptr;
};

/// Names of the passes, in order.
std::vector<std::string_view> training_step_passes();

/// Throws invalid_input if `stop_after` names no pass, and as the passes do. `graph.outputs` are
/// the model's; its metrics are set anew.
///
///   const TrainingStep step = make_training_step(OnnxFile(path).import(import), options);
///   const Plan plan = plan_shardings(step.train, mesh, cluster, …);
TrainingStep make_training_step(Graph graph, const TrainingStepOptions& options);

/// Makes the graph's outputs a value each, called as `names` has it: where one is an input or a
/// parameter, or two are one value, of a copy.
void name_outputs(Graph& graph, const std::vector<std::string>& names);

}  // namespace shardrun
