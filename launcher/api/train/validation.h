// The validations of one rank's run.
#pragma once

#include <optional>

#include "checkpoint/run_state.h"
#include "exec/early_stopping.h"
#include "train/rank_trainer.h"

namespace shardrun {

/// The best validation so far, its test, and whether to stop. Every rank decides alike, as every
/// rank has the same numbers.
class Validation {
 public:
  Validation(RankTrainer& trainer, const TrainOptions& options)
      : trainer_(trainer), stopping_(options.patience) {}

  bool stopped() const { return stopping_.exhausted(); }

  /// Nothing, and as if it had not been called, if a rank was asked to stop meanwhile. `last`: the
  /// run ends with this step, whatever the validation finds.
  std::optional<EvalReport> take(int64_t step, bool last);

  /// What it remembers, for a run that goes on from where this one stops.
  void add_to(RunState& state) const;
  void restore(const RunState& state);

 private:
  RankTrainer& trainer_;
  EarlyStopping stopping_;
  int64_t best_step_ = 0;
  std::optional<RankTrainer::Evaluation> test_;
};

}  // namespace shardrun
