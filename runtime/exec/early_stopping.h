// Early stopping: which validation is the best so far, and when to give up hope of a better one.
#pragma once

#include <cstdint>
#include <optional>

namespace shardrun {

/// As in Veličković et al., "Graph Attention Networks", 2018, section 3.3 and their code: a
/// validation is a step forward if its loss is at most the least so far or its accuracy at least
/// the greatest so far, and the best so far if both hold. Without accuracies the loss decides.
class EarlyStopping {
 public:
  /// `patience`: validations without a step forward after which to stop; 0: never.
  explicit EarlyStopping(int64_t patience) : patience_(patience) {}

  /// Takes the next validation; returns whether it is the best so far. A loss that is not a number
  /// is never a step forward.
  bool take(double loss, std::optional<double> accuracy);
  bool exhausted() const { return patience_ > 0 && waited_ >= patience_; }

 private:
  int64_t patience_;
  int64_t waited_ = 0;
  std::optional<double> least_loss_, greatest_accuracy_;
};

}  // namespace shardrun
