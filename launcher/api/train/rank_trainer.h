// One rank's part of a training run: its executors over one arena, and the data that fills them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/run_state.h"
#include "exec/checkpoint/reader.h"
#include "exec/checks/replica_check.h"
#include "exec/data/data.h"
#include "exec/executor.h"
#include "plan/plan.h"
#include "profile/profile.h"
#include "ranks/rank_device.h"
#include "ranks/stop.h"
#include "train/not_finite.h"

namespace shardrun {

/// Every call is collective over the device's ranks.
class RankTrainer {
 public:
  /// `data`: of this rank. `recorded`: a Profiler follows the run. `from`: where it goes on, with
  /// restore() as the first call; null: at the beginning.
  RankTrainer(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
              const TrainOptions& options, std::shared_ptr<const DataSource> data, bool recorded,
              const RunState* from = nullptr);
  /// Parameters and state. As Checkpoint::restore.
  Checkpoint::Done restore(const Checkpoint& checkpoint) {
    return checkpoint.restore(train_, comm_.host());
  }
  /// From now on the run is where the checkpoint was. Nothing has changed where it throws.
  void go_on_from(const Checkpoint& checkpoint, const RunState& state);

  const Arena& arena() const { return *arena_; }
  const DataSource& data() const { return *data_; }
  const Executor& training() const { return train_; }
  const Executor* evaluation() const { return evaluation_ ? &*evaluation_ : nullptr; }
  const Profiler* profiler() const { return profiler_ ? &*profiler_ : nullptr; }

  /// From now on requests to stop are noted, and evaluate() looks out for them.
  void begin() { running_.emplace(comm_); }
  /// As Running has it.
  std::optional<int> asked_to_stop();
  /// The run has not failed: what the flight recorder has is not wanted.
  void succeeded() {
    if (flight_) flight_->discard();
  }
  bool asked_for_checkpoint() { return running_->asked_for_checkpoint(); }

  /// What this knows of where the run is behind a step.
  RunState state_after(int64_t step) const;
  /// The first micro-batch of step `number`, as the data count them.
  int64_t first_batch(int64_t number) const {
    return first_batch_ + (number - 1 - first_step_) * micro_batches();
  }

  /// If the loss or the gradients' norm is not finite nothing is updated, and the step is made
  /// again to find the first value that was not. Then throws Failure(run), the same on every rank;
  /// or says so in StepReport::skipped, as often as TrainOptions::on_nan allows. Throws likewise
  /// where replicas are checked and numbers were corrupted.
  StepReport step(int64_t number, double lr);

  /// The first step and a validation, for what a device finds out when steps first run.
  void rehearse();

  bool has(Split split) const { return evaluation_ && data_->batches(split) > 0; }

  /// Mean loss over a split, each batch weighing as many labels as count in it, and the fraction of
  /// labels that the model finds, where it has classes.
  struct Evaluation {
    double loss = 0;
    std::optional<double> accuracy;
  };
  /// Nothing if a rank was asked to stop meanwhile. Throws as step() does; also where no label
  /// counts.
  std::optional<Evaluation> evaluate(Split split);

  /// Does the pass over the validation's one batch measure the test too?
  bool tests_in_same_pass() const;
  /// Validation and test, where tests_in_same_pass().
  std::pair<Evaluation, Evaluation> evaluate_both();

  /// The outputs that the validation's graph has for its first batch, whole, by name.
  std::map<std::string, Tensor> forward();

  /// Parameters and state that are kept (exec/checkpoint/layout.h), by name and whole: as the
  /// model's file has them, row-major.
  Tensor parameter(const std::string& name) const;
  void set_parameter(const std::string& name, const void* whole);

 private:
  struct Sums {
    double loss = 0, counted = 0;
    std::optional<double> correct;  // where there are classes
  };
  int64_t micro_batches() const { return train_.program().micro_batches; }  // of a step
  void begin_at(const RunState& state);
  void run_training(int64_t number, double lr, NotFinite* search, ReplicaCheck* check);
  void run_checked(int64_t number, double lr);
  std::string why_not_finite(const StepReport& report);
  [[noreturn]] void fail_pass(int64_t batch, Split split, const std::string& metric);
  bool no_label_counts(int64_t batch, Split split) const;
  void add_metrics(Sums& sums, int64_t batch, Split split, const std::string& prefix);
  Evaluation mean(const Sums& sums, Split split) const;
  void pass(int64_t batch, Split split, NotFinite* search = nullptr);
  void fill(Executor& executor, int64_t batch, Split split, Timeline* timeline);
  NotFinite::Origin origin_in(int64_t batch, Split split) const;
  void run_micro(Executor& executor) const;

  Communicator& comm_;
  const Model::Impl& model_;
  const TrainingPlan::Impl& plan_;
  RankPrograms programs_;
  std::shared_ptr<Arena> arena_;
  Executor train_;
  std::optional<Executor> evaluation_;
  std::vector<BatchField> fields_;
  std::shared_ptr<const DataSource> data_;
  std::string spec_;
  nlohmann::json run_options_;        // RunState::options
  std::string graph_;                 // RunState::graph
  int64_t tokens_ = 0, samples_ = 0;  // of one micro-batch
  /// Updates done when the run began or went on, the first micro-batch behind them, and its
  /// kRandomStep.
  int64_t first_step_ = 0, first_batch_ = 0, first_draw_ = 0;
  int64_t passes_ = 0;   // over batches of validation, in all
  int64_t step_ = 0;     // the last one
  bool filled_ = false;  // does train_ hold the next step's batch already?
  std::optional<Profiler> profiler_;
  std::optional<FlightRecorder> flight_;
  int64_t may_skip_ = 0, skipped_ = 0;  // steps
  int64_t check_every_ = 0;             // steps; 0: never
  int64_t sound_step_ = 0;              // the last one that a check found nothing in
  std::optional<ReplicaCheck> replicas_;
  std::optional<Running> running_;
};

}  // namespace shardrun
