// Early stopping on loss and accuracy.
#include "exec/early_stopping.h"

#include <cmath>

namespace shardrun {

bool EarlyStopping::take(double loss, std::optional<double> accuracy) {
  const bool number = !std::isnan(loss);
  const bool lower = number && (!least_loss_ || loss < *least_loss_);
  const bool higher =
      number && accuracy && (!greatest_accuracy_ || *accuracy > *greatest_accuracy_);
  waited_ = lower || higher ? 0 : waited_ + 1;
  if (lower) least_loss_ = loss;
  if (higher) greatest_accuracy_ = *accuracy;
  return lower;
}

}  // namespace shardrun
