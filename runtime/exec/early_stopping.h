// Early stopping: which validation is the best so far, and when to give up hope of a better one.
#pragma once

#include <cstdint>
#include <optional>

namespace shardrun {

/// On loss and accuracy, as in Veličković et al., "Graph Attention Networks", 2018, section 3.3: a
/// validation is a step forward if its loss is below the least so far or its accuracy above the
/// greatest so far. Their code takes one that is equal too, with which an accuracy that moves no
/// more would go on for ever. The best so far is the first one of the least loss: their code wants
/// both, which with 500 labels may hold for the last time when training has hardly begun.
class EarlyStopping {
 public:
  /// `patience`: validations without a step forward after which to stop; 0: never.
  explicit EarlyStopping(int64_t patience) : patience_(patience) {}

  /// Takes the next validation; returns whether it is the best so far. A loss that is not a number
  /// is never a step forward.
  bool take(double loss, std::optional<double> accuracy);
  bool exhausted() const { return patience_ > 0 && state_.waited >= patience_; }

  /// What it remembers, for a run that goes on from where another one stopped.
  struct State {
    int64_t waited = 0;  // validations since the last step forward
    std::optional<double> least_loss, greatest_accuracy;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  int64_t patience_;
  State state_;
};

}  // namespace shardrun
