// A validation, and where it is the best so far its test.
#include "validation.h"

#include <tuple>

namespace shardrun {

std::optional<EvalReport> Validation::take(int64_t step) {
  std::optional<RankTrainer::Evaluation> now, test;
  if (trainer_.tests_beside()) {
    std::tie(now, test) = trainer_.evaluate_both();
  } else {
    now = trainer_.evaluate(Split::validation);
  }
  if (!now) return std::nullopt;
  EvalReport report;
  report.step = step;
  report.val_loss = now->loss;
  report.val_accuracy = now->accuracy;
  report.best = stopping_.take(now->loss, now->accuracy);
  if (report.best) {
    best_step_ = step;
    // The weights of the best step are there now and not later.
    if (!test && trainer_.has(Split::test)) {
      test = trainer_.evaluate(Split::test);
      if (!test) return std::nullopt;
    }
    test_ = test;
  }
  if ((stopped() || step == options_.steps) && test_) {
    report.best_step = best_step_;
    report.test_loss = test_->loss;
    report.test_accuracy = test_->accuracy;
  }
  return report;
}

}  // namespace shardrun
