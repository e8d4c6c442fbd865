// Early stopping on loss and accuracy.
#include "exec/early_stopping.h"

#include <cmath>

namespace shardrun {

bool EarlyStopping::take(double loss, std::optional<double> accuracy) {
  const bool number = !std::isnan(loss);
  const bool lower = number && (!state_.least_loss || loss < *state_.least_loss);
  const bool higher =
      number && accuracy && (!state_.greatest_accuracy || *accuracy > *state_.greatest_accuracy);
  state_.waited = lower || higher ? 0 : state_.waited + 1;
  if (lower) state_.least_loss = loss;
  if (higher) state_.greatest_accuracy = *accuracy;
  return lower;
}

}  // namespace shardrun
