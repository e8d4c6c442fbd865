// The passes from an imported graph to a training step: their order, and what each leaves.
#include "graph/passes/training_step.h"

#include <gtest/gtest.h>

#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;

/// y = relu(x w) v, and a weight that nothing reads.
Graph model() {
  Build b(DType::f32);
  const ValueId x = b.in("x", {4, 8}), w = b.param("w", {8, 8}), v = b.param("v", {8, 8});
  for (ValueId id : {w, v, b.param("idle", {3})}) b.g.trainable[id] = true;
  b.g.outputs = {b.matmul(b.op("relu", {b.matmul(x, w, "ik,kj->ij")}), v, "ik,kj->ij")};
  return b.g;
}

TrainingStepOptions options() {
  TrainingStepOptions out;
  out.loss = LossKind::mse;
  out.optimizer.kind = OptimizerKind::sgd;
  return out;
}

TEST(TrainingStep, RunsItsPassesInOrderAndStopsAfterAny) {
  const std::vector<std::string_view> all = training_step_passes();
  ASSERT_GT(all.size(), 10u);
  for (size_t last = 0; last < all.size(); ++last) {
    std::vector<std::string_view> ran;
    TrainingStepOptions o = options();
    o.stop_after = std::string(all[last]);
    o.after = [&](std::string_view pass, const TrainingStep& made) {
      ran.push_back(pass);
      check_graph(made.train);
    };
    const TrainingStep step = make_training_step(model(), o);
    EXPECT_EQ(
        ran, std::vector<std::string_view>(all.begin(), all.begin() + static_cast<long>(last) + 1));
    const bool updates = std::find(ran.begin(), ran.end(), "optimizer") != ran.end();
    EXPECT_EQ(!step.train.updates.empty(), updates) << all[last];
  }
}

TEST(TrainingStep, NamesThePassesWhereOneIsUnknown) {
  TrainingStepOptions o = options();
  o.stop_after = "fues";
  try {
    make_training_step(model(), o);
    ADD_FAILURE() << "was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("recognise, channels_last, loss"), std::string::npos)
        << e.what();
  }
}

TEST(TrainingStep, KeepsOutputsForTheEvaluationAlone) {
  TrainingStepOptions o = options();
  const TrainingStep without = make_training_step(model(), o);
  EXPECT_TRUE(without.evaluation.outputs.empty());
  EXPECT_EQ(without.unreached, std::vector<std::string>{"idle"});
  o.outputs = {"y"};
  const TrainingStep with = make_training_step(model(), o);
  EXPECT_TRUE(with.train.outputs.empty());
  ASSERT_EQ(with.evaluation.outputs.size(), 1u);
  EXPECT_EQ(with.evaluation.value(with.evaluation.outputs[0]).name, "y");
  EXPECT_TRUE(with.evaluation.updates.empty());
}

TEST(TrainingStep, ComputesInBf16WhereItIsAsked) {
  TrainingStepOptions o = options();
  const auto products = [](const Graph& graph, DType dtype) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
      return node.op == "matmul" && graph.type(node.inputs[0]).dtype == dtype;
    });
  };
  const TrainingStep f32 = make_training_step(model(), o);
  o.bf16 = true;
  const TrainingStep bf16 = make_training_step(model(), o);
  EXPECT_EQ(products(f32.train, DType::bf16), 0);
  EXPECT_EQ(products(bf16.train, DType::f32), 0);
  EXPECT_EQ(products(bf16.train, DType::bf16), products(f32.train, DType::f32));
}

}  // namespace
}  // namespace shardrun
