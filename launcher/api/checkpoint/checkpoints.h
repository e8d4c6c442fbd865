// Checkpoints: the saves of one rank's training run.
#pragma once

#include <functional>
#include <optional>

#include "checkpoint/run_state.h"
#include "exec/checkpoint/writer.h"
#include "plan/plan.h"

namespace shardrun {

/// Every call is collective over the ranks of `host`, but for the destructor.
class RunCheckpoints {
 public:
  /// `last`: the step of the newest checkpoint in the folder, which has no need of another; -1:
  /// none. `ended`: called on rank 0 with how each attempt ended.
  RunCheckpoints(const Executor& training, Communicator& host, const TrainingPlan::Impl& plan,
                 const TrainOptions& options, int64_t last,
                 std::function<void(const CheckpointReport&)> ended);

  int64_t memory_bytes() const { return memory_bytes_; }
  int64_t failed() const { return failed_; }  // attempts

  /// Behind a step: begins one if `wanted`, unless the step has one already, and looks after the
  /// one that is being written. `state` is asked for if one begins; `before` as
  /// CheckpointWriter::save has it.
  void after_step(int64_t step, bool wanted, const std::function<RunState()>& state,
                  const std::function<void()>& before);
  /// Waits for the one that is being written.
  void finish();

 private:
  void tell(const std::optional<Saved>& saved);

  const bool leader_;
  CheckpointWriter writer_;
  std::function<void(const CheckpointReport&)> ended_;
  int64_t memory_bytes_ = 0;
  int64_t last_;  // step of the last attempt
  int64_t failed_ = 0;
};

}  // namespace shardrun
