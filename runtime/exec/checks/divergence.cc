// Three losses, a moving average, and two limits.
#include "exec/checks/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr double kKeep = 0.9;  // of the average, each step
constexpr int64_t kSteps = 10;

double times(double factor, double loss) { return loss + (factor - 1) * std::abs(loss); }

}  // namespace

std::string Divergence::take(int64_t step, double loss) {
  if (++taken_ == 1) first_ = lowest_ = loss;
  const double least = std::min({loss, before_[0], before_[1]});
  before_[1] = before_[0];
  before_[0] = loss;
  const bool of_first = taken_ > 3 && first_ != 0 && least > times(10, first_);
  const bool of_lowest =
      taken_ > kSteps && lowest_ != 0 && least > first_ && least > times(4, lowest_);
  sum_ = kKeep * sum_ + loss;
  weight_ = kKeep * weight_ + 1;
  const double average = sum_ / weight_;
  lowest_ = taken_ <= kSteps ? average : std::min(lowest_, average);
  if (said_ || !(of_first || of_lowest)) return "";
  said_ = true;
  return str("step ", step, ": the loss is ", loss, ", after ", first_,
             " at first: the run diverges; lower --lr, clip gradients with --clip, or warm up for "
             "longer");
}

}  // namespace shardrun
