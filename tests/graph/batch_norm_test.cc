// Batch normalisation put together from its pieces: gradients through the batch's statistics,
// precision under a large mean, modules that are called twice, bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "graph/autodiff.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"

namespace shardrun {
namespace {

struct Model {
  Graph graph;
  ValueId x, scale, bias, mean, variance, y;
};

/// y = the batch normalisation of x by its own statistics.
Model make(const TensorType& x, int64_t count, bool moves_statistics = false) {
  Model m;
  Graph& g = m.graph;
  const DType wide = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  const TensorType channels{wide, {x.shape[1]}};
  m.x = g.add_input("x", x, Role::batch);
  m.scale = g.add_input("scale", channels, Role::batch);
  m.bias = g.add_input("bias", channels, Role::batch);
  const ValueId moments = g.add("batch_moments", {m.x});
  const std::vector<ValueId> statistics = g.add_node(
      "batch_statistics", {moments}, {{"count", count}, {"dtype", std::string(to_string(wide))}});
  m.mean = statistics[0], m.variance = statistics[1];
  if (moves_statistics) {
    const ValueId mean = g.add_persistent("mean", channels, Role::state, Source{});
    const ValueId variance = g.add_persistent("variance", channels, Role::state, Source{});
    const std::vector<ValueId> next =
        g.add_node("running_statistics", {mean, variance, m.mean, m.variance},
                   {{"momentum", 0.1}, {"unbias", 1.0}});
    g.updates = {{mean, next[0]}, {variance, next[1]}};
  }
  m.y = g.add("batch_norm", {m.x, m.mean, m.variance, m.scale, m.bias}, {{"eps", 1e-5}});
  return m;
}

Tensor random(const TensorType& type, uint64_t seed, double centre = 0) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> draw(centre, 1);
  Tensor t({DType::f64, type.shape});
  for (int64_t i = 0; i < t.count(); ++i) t.as<double>()[i] = draw(rng);
  return convert(t, type.dtype);
}

TEST(BatchNorm, GradientThroughTheStatisticsOfTheBatch) {
  const TensorType x{DType::f64, {3, 2, 5}};
  Model m = make(x, 15);
  const NamedTensors feeds = {{"x", random(x, 1)},
                              {"scale", random({DType::f64, {2}}, 2)},
                              {"bias", random({DType::f64, {2}}, 3)}};
  // sum(weights * y²): the gradient of a sum alone would be zero.
  const ValueId weights = m.graph.add_constant("weights", random(x, 4));
  const ValueId weighted = m.graph.add("mul", {weights, m.graph.add("mul", {m.y, m.y})});
  const ValueId loss =
      m.graph.add("reduce_sum", {weighted},
                  {{"axes", std::vector<int64_t>{0, 1, 2}}, {"keepdims", int64_t{0}}});
  Graph forward = m.graph;
  const std::vector<ValueId> wrt = {m.x, m.scale, m.bias};
  const std::vector<ValueId> grads = differentiate(m.graph, loss, wrt);
  const std::vector<Tensor> analytic = evaluate_graph(m.graph, feeds, grads);
  for (size_t k = 0; k < wrt.size(); ++k) {
    double* at = feeds.at(m.graph.value(wrt[k]).name).as<double>();
    for (int64_t i = 0; i < analytic[k].count(); ++i) {
      constexpr double kStep = 1e-5;
      const double middle = at[i];
      double side[2];
      for (int s : {0, 1}) {
        at[i] = middle + (s == 1 ? kStep : -kStep);
        side[s] = evaluate_graph(forward, feeds, std::vector{loss})[0].at(0);
      }
      at[i] = middle;
      EXPECT_NEAR(analytic[k].at(i), (side[1] - side[0]) / (2 * kStep), 1e-6) << k << " " << i;
    }
  }
}

/// The statistics of another value are given, as far as x is concerned.
TEST(BatchNorm, StatisticsOfAnotherValueHaveTheirOwnGradient) {
  const TensorType x{DType::f64, {4, 2}};
  Model m = make(x, 4);
  const ValueId other = m.graph.add_input("other", x, Role::batch);
  const ValueId y =
      m.graph.add("batch_norm", {other, m.mean, m.variance, m.scale, m.bias}, {{"eps", 1e-5}});
  const ValueId loss =
      m.graph.add("reduce_sum", {m.graph.add("mul", {y, y})},
                  {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}});
  Graph forward = m.graph;
  const std::vector<ValueId> grads = differentiate(m.graph, loss, std::vector{m.x, other});
  const NamedTensors feeds = {{"x", random(x, 1)},
                              {"other", random(x, 5)},
                              {"scale", random({DType::f64, {2}}, 2)},
                              {"bias", random({DType::f64, {2}}, 3)}};
  const std::vector<Tensor> analytic = evaluate_graph(m.graph, feeds, grads);
  const char* names[] = {"x", "other"};
  for (size_t k = 0; k < 2; ++k) {
    double* at = feeds.at(names[k]).as<double>();
    for (int64_t i = 0; i < analytic[k].count(); ++i) {
      constexpr double kStep = 1e-6;
      const double middle = at[i];
      at[i] = middle + kStep;
      const double above = evaluate_graph(forward, feeds, std::vector{loss})[0].at(0);
      at[i] = middle - kStep;
      const double below = evaluate_graph(forward, feeds, std::vector{loss})[0].at(0);
      at[i] = middle;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(analytic[k].at(i), numeric, 1e-5 * std::max(1.0, std::abs(numeric)))
          << names[k] << " " << i;
    }
  }
}

/// E[x²] - E[x]² in f32 has no digit left where the mean is 1000 deviations; the moments are f64.
TEST(BatchNorm, LargeMeansKeepTheirVariance) {
  const TensorType x{DType::f32, {8, 1, 16}};
  const Model m = make(x, 128);
  const Tensor data = random(x, 7, 1000);
  const NamedTensors feeds = {{"x", data},
                              {"scale", Tensor::from<float>({1}, {1}, DType::f32)},
                              {"bias", Tensor::from<float>({1}, {0}, DType::f32)}};
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < 128; ++i) mean += data.at(i) / 128;
  for (int64_t i = 0; i < 128; ++i) variance += std::pow(data.at(i) - mean, 2) / 128;
  const std::vector<Tensor> got = evaluate_graph(m.graph, feeds, std::vector{m.mean, m.variance});
  EXPECT_NEAR(got[0].at(0), mean, 1e-4);
  EXPECT_NEAR(got[1].at(0), variance, 1e-6);
}

TEST(BatchNorm, EvaluationReadsTheRunningStatistics) {
  const TensorType x{DType::f32, {4, 2, 3}};
  Model m = make(x, 12, true);
  m.graph.outputs = {m.y};
  const Graph evaluation = evaluation_form(m.graph);
  const Node& norm = evaluation.nodes().back();
  ASSERT_EQ(norm.op, "batch_norm");
  EXPECT_EQ(evaluation.value(norm.inputs[1]).name, "mean");
  EXPECT_EQ(evaluation.value(norm.inputs[2]).name, "variance");
  EXPECT_EQ(evaluation.value(norm.inputs[1]).role, Role::state);
  EXPECT_TRUE(evaluation.updates.empty());
}

/// Statistics, scale and bias stay f32 with a bf16 x.
TEST(BatchNorm, InBf16KeepsItsStatistics) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2, 3, 4, 4}}, Role::batch);
  const ValueId w = g.add_persistent("w", {DType::f32, {5, 3, 1, 1}}, Role::parameter, Source{});
  const TensorType channels{DType::f32, {5}};
  const ValueId scale = g.add_persistent("scale", channels, Role::parameter, Source{});
  const ValueId bias = g.add_persistent("bias", channels, Role::parameter, Source{});
  const std::vector<int64_t> one{1, 1}, none{0, 0};
  const ValueId y =
      g.add("conv", {x, w},
            {{"strides", one}, {"dilations", one}, {"pads_low", none}, {"pads_high", none}});
  const std::vector<ValueId> statistics =
      g.add_node("batch_statistics", {g.add("batch_moments", {y})},
                 {{"count", int64_t{32}}, {"dtype", std::string("f32")}});
  const ValueId normal =
      g.add("batch_norm", {y, statistics[0], statistics[1], scale, bias}, {{"eps", 1e-5}});
  g.loss = g.add("reduce_sum", {g.add("mul", {normal, normal})},
                 {{"axes", std::vector<int64_t>{0, 1, 2, 3}}, {"keepdims", int64_t{0}}});
  Graph narrow = in_bf16(g);
  const std::vector<ValueId> parameters = narrow.with_role(Role::parameter);
  const std::vector<ValueId> grads = differentiate(narrow, narrow.loss, parameters);
  fold_casts(narrow);
  check_graph(narrow);
  for (const Node& node : narrow.nodes()) {
    const std::map<std::string, DType> wanted = {
        {"conv", DType::bf16}, {"batch_norm", DType::bf16}, {"batch_moments", DType::f64}};
    if (const auto it = wanted.find(node.op); it != wanted.end()) {
      EXPECT_EQ(narrow.type(node.outputs[0]).dtype, it->second) << node.op;
    }
    if (node.op == "conv_weight_grad") {
      EXPECT_EQ(narrow.type(node.inputs[0]).dtype, DType::bf16);
      EXPECT_EQ(narrow.type(node.outputs[0]).dtype, DType::f32);
    }
  }
  ASSERT_EQ(grads.size(), 3u);
  for (size_t i = 1; i < 3; ++i) EXPECT_EQ(narrow.type(grads[i]).dtype, DType::f32);
}

}  // namespace
}  // namespace shardrun
