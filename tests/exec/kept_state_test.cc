// A step whose loss or gradients are not finite leaves parameters and moments as they were.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/passes/node_order.h"
#include "tests/exec/random_plan.h"
#include "tests/support/sharded_run.h"

namespace shardrun {
namespace {

using test::NamedTensors;
using test::ShardedRun;

constexpr int64_t kBatch = 6, kIn = 3, kHidden = 4;

/// sum((sqrt((x w1)^2) w2 - y)^2): where a hidden unit is 0, the loss is finite and the gradient of
/// w1 is not: 1 / 0 times 0.
Graph model_of(const OptimizerOptions& options) {
  Graph g;
  const auto weight = [&](const std::string& name, Shape shape) {
    Source source;
    source.kind = Source::Kind::normal;
    source.a = 1, source.b = 0.1;
    source.stream = name;
    const ValueId id =
        g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, source);
    g.trainable[id] = true;
    return id;
  };
  const auto times = [&](ValueId a, ValueId b, const std::string& name) {
    return g.add("matmul", {a, b}, {{"equation", std::string("mk,kn->mn")}}, name);
  };
  const ValueId x = g.add_input("x", {DType::f32, {kBatch, kIn}}, Role::batch);
  const ValueId y = g.add_input("y", {DType::f32, {kBatch, 2}}, Role::batch);
  const ValueId w1 = weight("w1", {kIn, kHidden}), w2 = weight("w2", {kHidden, 2});
  const ValueId first = times(x, w1, "first");
  const ValueId hidden = g.add("sqrt", {g.add("mul", {first, first}, {}, "square")}, {}, "root");
  const ValueId difference = g.add("sub", {times(hidden, w2, "second"), y}, {}, "difference");
  const ValueId squares = g.add("mul", {difference, difference}, {}, "squares");
  g.loss = g.add("reduce_sum", {squares},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
  g.outputs = {};
  g.metrics["loss"] = g.loss;
  attach_optimizer(g, options);
  remove_dead_nodes(g);
  order_for_memory(g);
  return g;
}

/// `bad` is all of sample 4.
NamedTensors feed(std::optional<float> bad) {
  Tensor x({DType::f32, {kBatch, kIn}}), y({DType::f32, {kBatch, 2}});
  for (int64_t i = 0; i < x.count(); ++i)
    x.as<float>()[i] = 0.3f + 0.1f * static_cast<float>(i % 5);
  if (bad) {
    for (int64_t i = 0; i < kIn; ++i) x.as<float>()[4 * kIn + i] = *bad;
  }
  return {{"x", x}, {"y", y}};
}

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(byte_size(a.type()))) == 0;
}

/// When a step begins.
bool is_zeroed(const std::string& name) { return name.rfind("accumulated/", 0) == 0; }

class KeptState
    : public testing::TestWithParam<std::tuple<OptimizerKind, double, int, std::string>> {
 protected:
  OptimizerOptions options() const {
    OptimizerOptions o;
    o.kind = std::get<0>(GetParam());
    o.clip_norm = std::get<1>(GetParam());
    o.accumulate = std::get<2>(GetParam());
    return o;
  }
  ShardedRun run(const std::vector<NamedTensors>& feeds) const {
    const Graph g = model_of(options());
    return test::run_sharded(g, test::random_plan(g, Mesh::parse(std::get<3>(GetParam())), 7),
                             feeds, 0.05, 3);
  }
};

/// Nothing at all is updated.
TEST_P(KeptState, WhereTheLossIsNotFinite) {
  const ShardedRun before = run({feed({})});
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    const ShardedRun after = run({feed({}), feed(bad)});
    EXPECT_FALSE(std::isfinite(after.metrics[1].at("loss")));
    for (const auto& [name, value] : before.persistent)
      EXPECT_TRUE(is_zeroed(name) || same(value, after.persistent.at(name))) << name;
  }
}

/// Nor here, though all other gradients are finite.
TEST_P(KeptState, WhereAGradientIsNotFinite) {
  const ShardedRun before = run({feed({})});
  const ShardedRun after = run({feed({}), feed(0.0f)});
  ASSERT_TRUE(std::isfinite(after.metrics[1].at("loss")));
  ASSERT_FALSE(std::isfinite(after.metrics[1].at("grad_norm")));
  for (const auto& [name, value] : after.persistent)
    EXPECT_TRUE(is_zeroed(name) || same(value, before.persistent.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(All, KeptState,
                         testing::Combine(testing::Values(OptimizerKind::adamw, OptimizerKind::sgd),
                                          testing::Values(0.0, 1.0), testing::Values(1, 2),
                                          testing::Values("a=1", "a=2", "a=2,b=2")));

}  // namespace
}  // namespace shardrun
