// When checkpoints begin and end.
#include "checkpoint/checkpoints.h"

namespace shardrun {

RunCheckpoints::RunCheckpoints(const Executor& training, Communicator& host,
                               const TrainingPlan::Impl& plan, const TrainOptions& options,
                               int64_t last, std::function<void(const CheckpointReport&)> ended)
    : leader_(host.rank() == 0),
      writer_(training, host, {options.checkpoint, options.keep, !plan.copy_bytes.empty()}),
      ended_(std::move(ended)),
      last_(last) {
  if (!plan.copy_bytes.empty()) memory_bytes_ = plan.copy_bytes[static_cast<size_t>(host.rank())];
}

void RunCheckpoints::after_step(int64_t step, bool wanted, const std::function<RunState()>& state,
                                const std::function<void()>& before) {
  if (!wanted || step == last_) return tell(writer_.poll());
  finish();
  last_ = step;
  tell(writer_.save(step, to_json(state()), before));
}

void RunCheckpoints::finish() { tell(writer_.finish()); }

void RunCheckpoints::tell(const std::optional<Saved>& saved) {
  if (!saved) return;
  if (!saved->failure.empty()) ++failed_;
  if (leader_) {
    ended_({saved->step, saved->path, saved->failure, saved->left, saved->bytes, saved->seconds,
            saved->stalled_seconds});
  }
}

}  // namespace shardrun
