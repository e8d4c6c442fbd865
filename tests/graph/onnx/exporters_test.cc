// Models of other exporters than PyTorch's: Keras through tf2onnx and jax2onnx, against what Keras
// computes (tests/golden/make_exporters.py), and what such files say of their weights.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "planner/planner.h"
#include "tests/graph/onnx/import_test.h"
#include "tests/support/golden_model.h"

namespace shardrun {
namespace {

using test::GoldenModel, test::kGoldenSteps;
using test::ModelBuilder;

constexpr double kTolerance = 1e-4;

/// As make_exporters.py's.
Graph training_graph(const Graph& forward) { return test::golden_training_graph(forward, 0); }

/// Losses, and running averages thereafter, of three steps by the reference kernels.
void expect_three_steps(const GoldenModel& model, const std::string& form) {
  const NamedTensors after = test::expect_golden_losses(
      training_graph(model.forward), model.feeds, model.recorded.at("losses/" + form), kTolerance);
  if (form == "training")
    model.compare("stats/", kTolerance, [&](const std::string& name) { return after.at(name); });
}

GoldenModel load(const std::string& model, const std::string& exporter,
                 ImportOptions options = {}) {
  options.batch = 4;
  return test::load_golden(model, exporter, LossKind::cross_entropy, options);
}

TEST(OnnxExporters, KerasThroughTf2onnx) {
  const GoldenModel model = load("tokens_keras", "tf2onnx");
  EXPECT_TRUE(model.report.notes.empty()) << model.report.notes[0];
  expect_three_steps(model, "stored");
}

TEST(OnnxExporters, KerasThroughJax2onnxByStoredStatistics) {
  const GoldenModel model = load("images_keras", "jax2onnx");
  EXPECT_EQ(model.report.stored_statistics, 2);
  expect_three_steps(model, "stored");
}

GoldenModel load_training() {
  ImportOptions options;
  options.mode = ImportOptions::Mode::train;
  options.statistics = ImportOptions::Statistics::onnx;
  return load("images_keras", "jax2onnx", options);
}

TEST(OnnxExporters, KerasThroughJax2onnxByTheBatch) {
  const GoldenModel model = load_training();
  EXPECT_EQ(model.report.promoted, 2);
  expect_three_steps(model, "training");
}

TEST(OnnxExporters, KerasThroughJax2onnxOnAMesh) {
  const GoldenModel model = load_training();
  const Graph graph = training_graph(model.forward);
  const Mesh mesh = Mesh::parse("data=2");
  PlanOptions options;
  options.planner = parse_planner("dp");
  RuleCache rules;
  const Plan plan = plan_shardings(graph, mesh, host_cluster(), options, rules);
  const test::ShardedRun run =
      test::run_sharded(graph, plan, std::vector<NamedTensors>(kGoldenSteps, model.feeds), 1e-2);
  for (int step = 0; step < kGoldenSteps; ++step) {
    EXPECT_NEAR(run.metrics[static_cast<size_t>(step)].at("loss"),
                model.recorded.at("losses/training").at(step), kTolerance)
        << "step " << step + 1;
  }
}

class OnnxExporterFiles : public test::ImportTest {
 protected:
  bool trains(const std::string& name) const {
    return std::any_of(report.parameters.begin(), report.parameters.end(),
                       [&](const auto& p) { return p.name == name && p.trainable; });
  }
};

/// y = x W + b of tf2onnx, and what else a test adds behind 'y'.
ModelBuilder dense(const std::vector<float>& bias = {0.5F, -0.5F}) {
  ModelBuilder b;
  b.model.set_producer_name("tf2onnx");
  b.model.set_producer_version("1.17.0");
  b.input("x", {3, 2});
  b.floats("m/dense/Cast/ReadVariableOp:0", {2, 2}, {1, 2, 3, 4});
  b.floats("m/dense/BiasAdd/ReadVariableOp:0", {2}, bias);
  b.node("MatMul", {"x", "m/dense/Cast/ReadVariableOp:0"}, {"product"});
  b.node("Add", {"product", "m/dense/BiasAdd/ReadVariableOp:0"}, {"y"});
  return b;
}

TEST_F(OnnxExporterFiles, WhatTf2onnxMergedIsAskedFor) {
  ModelBuilder b = dense({1, 1});
  b.node("Mul", {"y", "m/dense/BiasAdd/ReadVariableOp:0"}, {"scaled"});
  b.output("scaled");
  EXPECT_NE(refusal(b).find("of a graph that tf2onnx optimised"), std::string::npos) << refusal(b);
  options.shared = ImportOptions::Shared::split;
  import(b);
  EXPECT_TRUE(trains("m/dense/BiasAdd/ReadVariableOp:0.1"));
}

/// Ones for the gate that forgets, else zeros; more than two values no layer begins with.
TEST_F(OnnxExporterFiles, BiasesOfFreshLstmsAreMergedToo) {
  for (const float last : {1.0F, 0.5F}) {
    ModelBuilder b = dense();
    b.floats("B0__12", {3}, {0, 1, last});
    test::set_int(b.node("Concat", {"y", "product"}, {"wide"}), "axis", 1);
    b.floats("m/dense_1/Cast/ReadVariableOp:0", {4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3});
    b.node("MatMul", {"wide", "m/dense_1/Cast/ReadVariableOp:0"}, {"three"});
    b.node("Add", {"three", "B0__12"}, {"once"});
    b.node("Mul", {"once", "B0__12"}, {"twice"});
    b.output("twice");
    EXPECT_EQ(refusal(b).find("merges weights that are equal") != std::string::npos, last == 1.0F);
  }
}

TEST_F(OnnxExporterFiles, WhatTf2onnxLeavesOutIsNoted) {
  ModelBuilder b = dense();
  b.floats("m/dense_1/Cast/ReadVariableOp:0", {2, 2}, {4, 3, 2, 1});
  b.node("MatMul", {"y", "m/dense_1/Cast/ReadVariableOp:0"}, {"z"});
  b.output("z");
  import(b);
  EXPECT_TRUE(noted("1 of 2 products with weights have no bias"));
  ModelBuilder whole = dense();
  whole.output("y");
  import(whole);
  EXPECT_TRUE(report.notes.empty());
}

TEST_F(OnnxExporterFiles, TensorFlowsNamesTellVariablesFromConstants) {
  ModelBuilder b = dense();
  b.floats("m/scale/mul/ReadVariableOp:0", {}, {2});
  b.floats("m/normalise/Sub/y:0", {2}, {0.1F, 0.2F});
  b.floats("m/mask/Const_1:0", {2}, {0.3F, 0.7F});
  b.floats("m/normalise/truediv_recip:0", {2}, {0.4F, 0.6F});
  b.node("Mul", {"y", "m/scale/mul/ReadVariableOp:0"}, {"a"});
  b.node("Sub", {"a", "m/normalise/Sub/y:0"}, {"b"});
  b.node("Add", {"b", "m/mask/Const_1:0"}, {"c"});
  b.node("Mul", {"c", "m/normalise/truediv_recip:0"}, {"d"});
  b.output("d");
  import(b);
  EXPECT_TRUE(trains("m/scale/mul/ReadVariableOp:0"));
  EXPECT_FALSE(trains("m/normalise/Sub/y:0"));
  EXPECT_FALSE(trains("m/mask/Const_1:0"));
  EXPECT_TRUE(trains("m/normalise/truediv_recip:0"));
  EXPECT_TRUE(noted("TensorFlow computed 'm/normalise/truediv_recip:0' from variables"));
}

TEST_F(OnnxExporterFiles, ABatchNormalisationThatTensorFlowFoldedIsNotedOrRefused) {
  ModelBuilder b = dense();
  b.floats("m/norm/batchnorm/mul:0", {2}, {0.4F, 0.6F});
  b.node("Mul", {"y", "m/norm/batchnorm/mul:0"}, {"z"});
  b.output("z");
  import(b);
  EXPECT_TRUE(noted("'m/norm/batchnorm/mul:0' holds a batch normalisation"));
  options.mode = ImportOptions::Mode::train;
  EXPECT_NE(refusal(b).find("--mode train cannot bring it back; export a call with training=True"),
            std::string::npos);
}

TEST_F(OnnxExporterFiles, ModeTrainSaysWhenItChangesNothing) {
  ModelBuilder b = dense();
  b.output("y");
  options.mode = ImportOptions::Mode::train;
  import(b);
  EXPECT_TRUE(noted("--mode train changes nothing"));
}

/// PyTorch's newer exporter of Keras's models: none of the module's parameters is in the file.
TEST_F(OnnxExporterFiles, LiftedVariablesAreWeights) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {3, 2});
  b.floats("lifted_tensor_0", {2, 2}, {1, 2, 3, 4});
  b.node("MatMul", {"x", "lifted_tensor_0"}, {"y"});
  b.output("y");
  auto* info = b.graph().add_value_info();
  ModelBuilder::set_info(info, "lifted_tensor_0", {2, 2}, test::kFloat);
  auto* kind = info->add_metadata_props();
  kind->set_key("pkg.torch.export.graph_signature.InputSpec.kind");
  kind->set_value("CONSTANT_TENSOR");
  import(b);
  EXPECT_TRUE(trains("lifted_tensor_0"));
  EXPECT_TRUE(noted("the export's metadata call every weight a constant"));
  // With a parameter there it is the constant that it says it is.
  b.floats("weight", {2, 2}, {1, 2, 3, 4});
  b.node("MatMul", {"y", "weight"}, {"z"});
  b.graph().mutable_output(0)->set_name("z");
  info = b.graph().add_value_info();
  ModelBuilder::set_info(info, "weight", {2, 2}, test::kFloat);
  kind = info->add_metadata_props();
  kind->set_key("pkg.torch.export.graph_signature.InputSpec.kind");
  kind->set_value("PARAMETER");
  import(b);
  EXPECT_FALSE(trains("lifted_tensor_0"));
}

/// (x - m) (s / sqrt(v + eps)) + b, as Flax writes it, and Equinox's (x - m) / sqrt(v + eps) s + b.
class WrittenBatchNorm : public OnnxExporterFiles {
 protected:
  ModelBuilder b;

  WrittenBatchNorm() {
    b.input("x", {5, 3, 2});
    b.floats("m", {2}, {0.1F, -0.2F});
    b.floats("v", {2}, {1.5F, 0.5F});
    b.floats("s", {2}, {2, 3});
    b.floats("b", {2}, {-1, 1});
    b.floats("eps", {}, {0.001F});
    b.node("Add", {"v", "eps"}, {"guarded"});
    b.node("Sqrt", {"guarded"}, {"root"});
    b.node("Sub", {"x", "m"}, {"centred"});
  }
  /// Against the formula: x = 1 everywhere.
  void expect_recognised(const std::string& result) {
    b.output(result);
    const Graph graph = import(b);
    EXPECT_EQ(report.stored_statistics, 1);
    EXPECT_FALSE(trains("m"));
    EXPECT_FALSE(trains("v"));
    EXPECT_TRUE(trains("s"));
    const NamedTensors feeds = {
        {"x", Tensor::from<float>({5, 3, 2}, std::vector<float>(30, 1.0F), DType::f32)}};
    const Tensor y = evaluate_graph(graph, feeds, std::vector{graph.outputs[0]})[0];
    EXPECT_NEAR(y.at(0), (1 - 0.1) / std::sqrt(1.501) * 2 - 1, 1e-6);
    EXPECT_NEAR(y.at(1), (1 + 0.2) / std::sqrt(0.501) * 3 + 1, 1e-6);
    options.mode = ImportOptions::Mode::train;
    import(b);
    EXPECT_EQ(report.promoted, 1);
  }
};

TEST_F(WrittenBatchNorm, ScaledFirst) {
  b.node("Reciprocal", {"root"}, {"inverse"});
  b.node("Mul", {"inverse", "s"}, {"factor"});
  b.node("Mul", {"centred", "factor"}, {"scaled"});
  b.node("Add", {"scaled", "b"}, {"y"});
  expect_recognised("y");
}

TEST_F(WrittenBatchNorm, ScaledLast) {
  b.node("Div", {"centred", "root"}, {"normal"});
  b.node("Mul", {"normal", "s"}, {"scaled"});
  b.node("Add", {"b", "scaled"}, {"y"});
  expect_recognised("y");
}

TEST_F(WrittenBatchNorm, Shifted) {
  b.node("Reciprocal", {"root"}, {"inverse"});
  b.node("Mul", {"inverse", "s"}, {"factor"});
  b.node("Mul", {"m", "factor"}, {"moved"});
  b.node("Sub", {"b", "moved"}, {"shift"});
  b.node("Mul", {"x", "factor"}, {"scaled"});
  b.node("Add", {"scaled", "shift"}, {"y"});
  expect_recognised("y");
}

/// What is read elsewhere, too, stays as it is written.
TEST_F(WrittenBatchNorm, NotWhereTheDifferenceHasAnotherUse) {
  b.node("Div", {"centred", "root"}, {"normal"});
  b.node("Mul", {"normal", "s"}, {"scaled"});
  b.node("Add", {"scaled", "b"}, {"z"});
  b.node("Add", {"z", "centred"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_EQ(report.stored_statistics, 0);
  EXPECT_TRUE(trains("v"));
}

/// Of tf2onnx's LSTM the second half of the biases is none of the layer's.
TEST_F(OnnxExporterFiles, ALayerOfTensorFlowHasOneBias) {
  for (const char* producer : {"tf2onnx", "pytorch"}) {
    ModelBuilder b;
    b.model.set_producer_name(producer);
    b.input("x", {3, 2, 1});
    b.floats("W", {1, 4, 1}, {1, 2, 3, 4});
    b.floats("R", {1, 4, 1}, {4, 3, 2, 1});
    b.floats("B", {1, 8}, {0.1F, 0.2F, 0.3F, 0.4F, 0, 0, 0, 0});
    auto& lstm = b.node("LSTM", {"x", "W", "R", "B"}, {"y"});
    test::set_int(lstm, "hidden_size", 1);
    b.output("y");
    Graph graph = import(b);
    attach_loss(graph, LossKind::mse);
    ValueId bias = kNoValue;
    for (ValueId id : graph.with_role(Role::parameter)) {
      if (graph.value(id).name == "B") bias = id;
    }
    const std::vector<ValueId> gradient = differentiate(graph, graph.loss, std::vector{bias});
    const NamedTensors feeds = {
        {"x", Tensor::from<float>({3, 2, 1}, {1, 2, 3, 4, 5, 6}, DType::f32)},
        {"target", Tensor::from<float>({3, 1, 2, 1}, {0, 0, 0, 0, 0, 0}, DType::f32)}};
    const Tensor g = evaluate_graph(graph, feeds, gradient)[0];
    EXPECT_NE(g.at(0), 0);
    EXPECT_EQ(g.at(4), std::string(producer) == "tf2onnx" ? 0 : g.at(0));
  }
}

/// TensorFlow's own operators, and a mode of Resize that ONNX has no more.
TEST_F(OnnxExporterFiles, WhatTf2onnxPassesOn) {
  ModelBuilder b;
  b.input("x", {1, 1, 3, 1});
  b.floats("scales", {4}, {1, 1, 1.4F, 1});
  b.node("Erfc", {"x"}, {"erfc"});
  b.node("Expm1", {"x"}, {"expm1"});
  auto& resize = b.node("Resize", {"x", "", "scales"}, {"resized"});
  test::set_string(resize, "coordinate_transformation_mode", "tf_half_pixel_for_nn");
  test::set_string(resize, "nearest_mode", "floor");
  for (const char* name : {"erfc", "expm1", "resized"}) b.output(name);
  const Graph graph = import(b);
  const NamedTensors feeds = {{"x", Tensor::from<float>({1, 1, 3, 1}, {-0.5F, 0, 2}, DType::f32)}};
  const std::vector<Tensor> y = evaluate_graph(graph, feeds, graph.outputs);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(y[0].at(i), std::erfc(feeds.at("x").at(i)), 1e-6);
    EXPECT_NEAR(y[1].at(i), std::expm1(feeds.at("x").at(i)), 1e-6);
  }
  // 0.5, 1.5, 2.5 and 3.5 of 1.4 steps: 0.36, 1.07, 1.79, 2.5. With half_pixel all are 0.5 less.
  EXPECT_EQ(y[2].type().shape, (Shape{1, 1, 4, 1}));
  for (const auto& [at, from] : {std::pair{0, 0}, {1, 1}, {2, 1}, {3, 2}})
    EXPECT_EQ(y[2].at(at), feeds.at("x").at(from)) << at;
}

/// In f64 the fourth of 0.6 steps would be 4.9999998. And where PRelu bends its slope is that
/// below.
TEST_F(OnnxExporterFiles, NearestByAFractionAndPReluAtZero) {
  ModelBuilder b;
  b.input("x", {1, 1, 9});
  b.floats("scales", {3}, {1, 1, 0.6F});
  auto& resize = b.node("Resize", {"x", "", "scales"}, {"resized"});
  test::set_string(resize, "coordinate_transformation_mode", "asymmetric");
  test::set_string(resize, "nearest_mode", "floor");
  b.floats("slope", {1}, {0.25});
  b.node("PRelu", {"resized", "slope"}, {"y"});
  test::set_int(b.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
  b.output("resized");
  b.output("sum", {});
  Graph graph = import(b);
  const NamedTensors feeds = {
      {"x", Tensor::from<float>({1, 1, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, DType::f32)}};
  const std::vector<ValueId> wrt = {graph.find("x")};
  std::vector<ValueId> wanted = differentiate(graph, graph.outputs[1], wrt);
  wanted.push_back(graph.outputs[0]);
  const std::vector<Tensor> got = evaluate_graph(graph, feeds, wanted);
  const double from[] = {0, 1, 3, 5, 6};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(got[1].at(i), from[i]);
  for (const auto& [at, slope] : {std::pair{0, 0.25}, {1, 1.0}, {2, 0.0}, {3, 1.0}})
    EXPECT_EQ(got[0].at(at), slope) << at;
}

/// Lengths that are known, as of a layer without a mask, and lengths that come with the batch.
TEST_F(OnnxExporterFiles, ReverseSequenceOfKnownAndOfGivenLengths) {
  for (const bool known : {true, false}) {
    ModelBuilder b;
    b.input("x", {3, 2});
    if (known) {
      b.ints("lengths", {3, 3});
    } else {
      b.input("lengths", {2}, test::kInt64);
    }
    b.floats("w", {2}, {1, 10});
    b.node("Mul", {"x", "w"}, {"scaled"});
    b.node("ReverseSequence", {"scaled", "lengths"}, {"y"});
    b.output("y");
    const Graph graph = import(b);
    const NamedTensors feeds = {{"x", Tensor::from<float>({3, 2}, {1, 2, 3, 4, 5, 6}, DType::f32)},
                                {"lengths", Tensor::from<int64_t>({2}, {3, 2}, DType::i64)}};
    const Tensor y = evaluate_graph(graph, feeds, graph.outputs)[0];
    const std::vector<double> want = {5, known ? 60.0 : 40.0, 3, known ? 40.0 : 20.0,
                                      1, known ? 20.0 : 60.0};
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.at(i), want[static_cast<size_t>(i)]) << known << i;
  }
}

}  // namespace
}  // namespace shardrun
