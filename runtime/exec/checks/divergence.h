// Divergence: notices that a run diverges while its numbers are still finite.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun {

/// A run is said to diverge once three losses in a row are
///   - above ten times the first step's, which no update had touched, or
///   - from ten steps on, above the first and four times the lowest moving average so far (of about
///     ten losses): where fast.ai's search for a learning rate gives up (`stop_div`, after Smith,
///     "Cyclical Learning Rates for Training Neural Networks", 2017).
/// Four times a negative loss is three of its sizes above it.
class Divergence {
 public:
  /// "" or, once, a sentence that says so.
  std::string take(int64_t step, double loss);

 private:
  int64_t taken_ = 0;
  double first_ = 0, lowest_ = 0;
  double sum_ = 0, weight_ = 0;  // of the moving average
  double before_[2] = {0, 0};    // the losses of the last two steps
  bool said_ = false;
};

}  // namespace shardrun
