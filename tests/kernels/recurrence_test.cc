// LSTM over its steps, against the equations. The registry's tests hold kernels against each other.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernel.h"

namespace shardrun {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// One sample, one state: the equations as they stand in a book.
TEST(Lstm, FollowsItsEquations) {
  for (const bool reverse : {false, true}) {
    const Shape x_shape = {3, 1, 4, 1};
    const std::vector<double> x = {0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, -1, 1.1, 0.2};
    const std::vector<double> r = {0.5, -0.4, 0.3, 0.2};
    const Node node{"lstm", "lstm", {{"reverse", int64_t{reverse}}}, {}, {}, Phase::micro};
    const std::vector<Tensor> out = run_reference(
        node, std::vector<Tensor>{
                  Tensor::from(x_shape, x, DType::f64), Tensor::from(Shape{4, 1, 1}, r, DType::f64),
                  Tensor::from(Shape{1, 1}, std::vector<double>{0.7}, DType::f64),
                  Tensor::from(Shape{1, 1}, std::vector<double>{-0.6}, DType::f64)});
    double h = 0.7, c = -0.6;
    for (int n = 0; n < 3; ++n) {
      const int t = reverse ? 2 - n : n;
      const auto z = [&](int k) {
        return x[static_cast<size_t>(4 * t + k)] + r[static_cast<size_t>(k)] * h;
      };
      const double i = sigmoid(z(0)), o = sigmoid(z(1)), f = sigmoid(z(2)), g = std::tanh(z(3));
      c = f * c + i * g;
      h = o * std::tanh(c);
      EXPECT_NEAR(out[0].at(t), h, 1e-12) << reverse << t;
      EXPECT_NEAR(out[1].at(t), c, 1e-12) << reverse << t;
    }
  }
}

}  // namespace
}  // namespace shardrun
