// A validation, and where it is the best so far its test.
#include "train/validation.h"

#include <tuple>

namespace shardrun {

void Validation::add_to(RunState& state) const {
  state.stopping = stopping_.state();
  state.best_step = best_step_;
  if (!test_) return;
  state.test_loss = test_->loss;
  state.test_accuracy = test_->accuracy;
}

void Validation::restore(const RunState& state) {
  stopping_.restore(state.stopping);
  best_step_ = state.best_step;
  if (state.test_loss) test_ = {*state.test_loss, state.test_accuracy};
}

std::optional<EvalReport> Validation::take(int64_t step, bool last) {
  std::optional<RankTrainer::Evaluation> now, test;
  if (trainer_.tests_in_same_pass()) {
    std::tie(now, test) = trainer_.evaluate_both();
  } else {
    now = trainer_.evaluate(Split::validation);
  }
  if (!now) return std::nullopt;
  EvalReport report;
  report.step = step;
  report.val_loss = now->loss;
  report.val_accuracy = now->accuracy;
  EarlyStopping stopping = stopping_;
  report.best = stopping.take(now->loss, now->accuracy);
  // The weights of the best step are there now and not later.
  if (report.best && !test && trainer_.has(Split::test)) {
    test = trainer_.evaluate(Split::test);
    if (!test) return std::nullopt;
  }
  stopping_ = stopping;
  if (report.best) {
    best_step_ = step;
    test_ = test;
  }
  if ((stopped() || last) && test_) {
    report.best_step = best_step_;
    report.test_loss = test_->loss;
    report.test_accuracy = test_->accuracy;
  }
  return report;
}

}  // namespace shardrun
