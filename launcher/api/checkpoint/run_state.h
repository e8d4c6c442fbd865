// Where a training run is, besides its parameters and state: what a checkpoint's manifest says of
// it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "exec/early_stopping.h"
#include "exec/metrics.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// All that a run needs to go on as if it had not stopped. The learning rate follows from the step,
/// the order of samples from the seed.
struct RunState {
  int64_t step = 0;           // updates done
  int64_t batches = 0;        // micro-batches of training that were read
  int64_t batch_samples = 0;  // samples in each of them; 0: batches are not counted so
  int64_t draws = 0;          // kRandomStep of the next one
  /// The validation of `step` was left out: the run was asked to stop before it, or during it.
  bool validation_due = false;
  EarlyStopping::State stopping;
  int64_t best_step = 0;  // of the validation of the lowest loss; 0: none yet
  std::optional<double> test_loss, test_accuracy;  // of that step
  MetricsPosition metrics;
  std::string graph;                                  // structural_hash of the model's step
  nlohmann::json options = nlohmann::json::object();  // options_of
  nlohmann::json model = nlohmann::json::object();    // to_json of a TrainedModel

  /// The first micro-batch behind those samples, where a batch has so many now: a run with batches
  /// of 12 that has read 10 of them goes on at batch 8 of 16, and leaves out 8 samples.
  int64_t next_batch(int64_t samples_now) const;
};
nlohmann::json to_json(const RunState& state);
/// Throws invalid_input naming the field, with `origin` in front.
RunState read_run_state(const nlohmann::json& object, const std::string& origin);

/// What a run was asked for, as far as its numbers depend on it: not files, ranks or plans.
nlohmann::json options_of(const ModelOptions& model, const TrainOptions& train,
                          const nlohmann::json& data);
/// The model's part of what options_of wrote; an option that it lacks has its default. Throws
/// invalid_input, with `origin` in front.
ModelOptions model_options_of(const nlohmann::json& options, const std::string& origin);
/// What two runs were asked for otherwise: "lr 0.001 (was 0.0003), steps 2000 (was 1000)"; "" if
/// nothing.
std::string differences(const nlohmann::json& now, const nlohmann::json& was);

}  // namespace shardrun
