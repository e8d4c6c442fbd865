// Formulas that f32 has no numbers for.
#include <limits>

#include "graph/autodiff.h"
#include "graph/passes/recognise/recognise.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor f32(const std::vector<double>& values) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return convert(Tensor::from<double>(shape, values, DType::f64), DType::f32);
}

/// Also where the sigmoid is 1 or 0 in f32.
TEST(StableForms, OfSigmoids) {
  for (const int form : {0, 1, 2}) {
    const bool rest = form > 0;
    Build b(DType::f32);
    const ValueId x = b.in("x", {4}), p = b.op("sigmoid", {x});
    const ValueId of = form == 0   ? p
                       : form == 1 ? b.sub(b.number(1), p)
                                   : b.add(b.op("neg", {p}), b.number(1));
    const ValueId y = b.op("log", {of});
    b.g.outputs = {y};
    EXPECT_EQ(take_stable_forms(b.g), 1);
    check_graph(b.g);
    const std::vector<double> values = {-200, -1, 1, 200};
    const Tensor got = evaluate_graph(b.g, {{"x", f32(values)}}, std::vector<ValueId>{y})[0];
    for (int64_t i = 0; i < 4; ++i) {
      const double sign = rest ? 1 : -1, v = sign * values[static_cast<size_t>(i)];
      EXPECT_NEAR(got.at(i), -(std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v)))), 1e-6) << v;
    }
  }
  Build other;
  const ValueId x = other.in("x", {4});
  other.g.outputs = {other.op("log", {other.sub(other.number(2), other.op("sigmoid", {x}))})};
  EXPECT_EQ(take_stable_forms(other.g), 0);
}

/// log(exp(a) + exp(b)) where f32 has neither exponential, and one or both are minus infinity.
TEST(StableForms, OfSumsOfExponentials) {
  Build b(DType::f32);
  const ValueId x = b.in("x", {6}), y = b.in("y", {6});
  b.g.outputs = {b.op("log", {b.add(b.op("exp", {x}), b.op("exp", {y}))})};
  EXPECT_EQ(take_stable_forms(b.g), 1);
  check_graph(b.g);
  const std::vector<double> left = {-200, 3, 400, -kInf, -kInf, -7},
                            right = {-201, 3, -400, 5, -kInf, kInf};
  const Tensor got = evaluate_graph(b.g, {{"x", f32(left)}, {"y", f32(right)}},
                                    std::vector<ValueId>{b.g.outputs[0]})[0];
  const std::vector<double> want = {
      -200 + std::log1p(std::exp(-1.0)), 3 + std::log(2.0), 400, 5, -kInf, kInf};
  for (size_t i = 0; i < want.size(); ++i) {
    const double v = got.at(static_cast<int64_t>(i));
    if (std::isinf(want[i]))
      EXPECT_EQ(v, want[i]) << i;
    else
      EXPECT_NEAR(v, want[i], 1e-4) << i;
  }
}

/// max(log(p), -100) on either side: its value, and a gradient that is PyTorch's of a binary cross
/// entropy, also where p is 0, 1 or nearly so.
TEST(StableForms, OfCrossEntropies) {
  for (const bool first : {true, false}) {
    Build b(DType::f32);
    const ValueId p = b.in("p", {6}), log = b.op("log", {p}), least = b.number(-100);
    const ValueId y = first ? b.op("max", {log, least}) : b.op("max", {least, log});
    b.g.outputs = {y, b.sum(y, {0}, false)};
    EXPECT_EQ(take_stable_forms(b.g), 1);
    check_graph(b.g);
    const ValueId of = differentiate(b.g, b.g.outputs[1], std::vector{p})[0];
    const std::vector<double> values = {0, 1e-30, 1e-14, 1e-3, 0.5, 1};
    const std::vector<Tensor> got =
        evaluate_graph(b.g, {{"p", f32(values)}}, std::vector{b.g.outputs[0], of});
    for (int64_t i = 0; i < 6; ++i) {
      const double v = values[static_cast<size_t>(i)];
      const double want = (1 - v) / std::max(v * (1 - v), 1e-12);
      EXPECT_NEAR(got[0].at(i), std::max(std::log(v), -100.0), 1e-5) << v;
      EXPECT_NEAR(got[1].at(i), want, want * 1e-6) << v;
    }
  }
  Build other;
  other.g.outputs = {other.op("max", {other.op("log", {other.in("x", {4})}), other.number(-10)})};
  EXPECT_EQ(take_stable_forms(other.g), 0);
}

TEST(StableForms, OfQuotients) {
  Build b(DType::f32);
  const ValueId y = b.in("y", {7}), x = b.in("x", {7});
  b.g.outputs = {b.op("atan", {b.div(y, x)})};
  EXPECT_EQ(take_stable_forms(b.g), 1);
  check_graph(b.g);
  const ValueId angles = b.g.outputs[0], sum = b.sum(angles, {0}, false);
  const std::vector<ValueId> grads = differentiate(b.g, sum, std::vector{y, x});
  const std::vector<double> ys = {1, -2, 0, 0, 3, -4, 1e-3}, xs = {2, 0, 0, 3, -0.0, -1, 1e3};
  const std::vector<Tensor> got = evaluate_graph(b.g, {{"y", f32(ys)}, {"x", f32(xs)}},
                                                 std::vector{angles, grads[0], grads[1]});
  for (size_t i = 0; i < ys.size(); ++i) {
    const double squares = ys[i] * ys[i] + xs[i] * xs[i], dy = squares == 0 ? 0 : xs[i] / squares;
    const double dx = squares == 0 ? 0 : -ys[i] / squares;
    const double angle = squares == 0 ? 0 : std::atan(ys[i] / (xs[i] == 0 ? 0.0 : xs[i]));
    const auto at = static_cast<int64_t>(i);
    EXPECT_NEAR(got[0].at(at), angle, 1e-6) << i;
    EXPECT_NEAR(got[1].at(at), dy, 1e-6 * std::abs(dy)) << i;
    EXPECT_NEAR(got[2].at(at), dx, 1e-6 * std::abs(dx)) << i;
  }
  Build other;
  other.g.outputs = {other.op("atan", {other.div(other.in("x", {4}), 2.0)})};
  EXPECT_EQ(take_stable_forms(other.g), 0);
}

}  // namespace
}  // namespace shardrun
