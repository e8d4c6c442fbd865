// Models that an importer gets wrong most easily, against PyTorch: what is a weight, what is a
// table, and which exports are to be refused. The files come from tests/golden/make_more.py.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/autodiff.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"
#include "tests/graph/onnx/cut_run.h"

namespace shardrun {
namespace {

using test::GoldenModel;
using test::ModelBuilder;
using test::TemporaryFolder;

constexpr double kTolerance = 1e-4;

double relative_norm(const Tensor& got, const Tensor& want) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < want.count(); ++i) {
    difference += std::pow(got.at(i) - want.at(i), 2);
    norm += std::pow(want.at(i), 2);
  }
  // A key's bias has a gradient of rounding only.
  return norm < 1e-14 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

GoldenModel load(const std::string& model, const std::string& exporter) {
  return test::load_golden(model, exporter, {});
}

void expect_three_steps(const GoldenModel& model) {
  test::expect_golden_losses(test::golden_training_graph(model.forward), model.feeds,
                             model.recorded.at("losses"), kTolerance);
}

struct Case {
  const char* model;
  const char* exporter;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }

class OnnxModels : public testing::TestWithParam<Case> {};

TEST_P(OnnxModels, LossGradientsAndThreeSteps) {
  const GoldenModel model = load(GetParam().model, GetParam().exporter);
  Graph graph = model.forward;
  std::vector<ValueId> parameters;
  for (ValueId id : graph.with_role(Role::parameter)) {
    if (graph.trainable.at(id)) parameters.push_back(id);
  }
  std::vector<ValueId> wanted = differentiate(graph, graph.loss, parameters);
  for (size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NE(wanted[i], kNoValue) << graph.value(parameters[i]).name;
  const std::vector<Tensor> gradients = evaluate_graph(graph, model.feeds, wanted);
  size_t recorded = 0;
  for (const auto& [name, tensor] : model.recorded) recorded += name.rfind("grad/", 0) == 0;
  EXPECT_EQ(parameters.size(), recorded) << "a weight was lost, or a table trains";
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = "grad/" + graph.value(parameters[i]).name;
    ASSERT_TRUE(model.recorded.count(name)) << "PyTorch has no " << name;
    EXPECT_LE(relative_norm(gradients[i], model.recorded.at(name)), kTolerance) << name;
  }
  expect_three_steps(model);
}

TEST_P(OnnxModels, ThreeStepsOnMeshes) {
  const GoldenModel model = load(GetParam().model, GetParam().exporter);
  const Graph graph = test::golden_training_graph(model.forward);
  for (const char* text : {"data=3", "data=2,model=2"})
    test::expect_losses_when_cut(graph, model.feeds, Mesh::parse(text), test::kGoldenRate,
                                 model.losses(), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, OnnxModels,
                         testing::Values(Case{"rotary", "dynamo"}, Case{"rotary", "legacy"},
                                         Case{"relative", "dynamo"}, Case{"relative", "legacy"},
                                         Case{"classes", "dynamo"}, Case{"classes", "legacy"},
                                         Case{"encoder", "dynamo"}, Case{"encoder", "legacy"},
                                         Case{"recurrent", "dynamo"}, Case{"recurrent", "legacy"},
                                         Case{"quantised", "dynamo"}),
                         [](const auto& info) {
                           return std::string(info.param.model) + "_" + info.param.exporter;
                         });

/// What the loss depends on through a detach() alone stands still, like the teacher of a
/// distillation.
TEST(Detach, WhatIsBehindItDoesNotTrain) {
  ModelBuilder b;
  b.input("x", {2, 3});
  b.floats("teacher.weight", {3, 3}, std::vector<float>(9, 0.5F));
  b.floats("student.weight", {3, 3}, std::vector<float>(9, 0.25F));
  b.node("MatMul", {"x", "teacher.weight"}, {"aim"});
  test::add_metadata(&b.node("Identity", {"aim"}, {"detached"}), "pkg.torch.onnx.fx_node",
                     "%detach : [num_users=1] = call_function[target=torch.ops.aten.detach."
                     "default](args = (%aim,), kwargs = {})");
  b.node("MatMul", {"x", "student.weight"}, {"y"});
  b.node("Sub", {"y", "detached"}, {"difference"});
  test::set_int(b.node("ReduceL2", {"difference"}, {"loss"}), "keepdims", 0);
  b.output("loss");
  const TemporaryFolder folder;
  ImportOptions options;
  options.evaluate = run_reference;
  const Graph graph = OnnxFile(b.write(folder)).import(options);
  std::vector<std::string> trained;
  for (const auto& [id, trains] : graph.trainable) {
    if (trains) trained.push_back(graph.value(id).name);
  }
  EXPECT_EQ(trained, std::vector<std::string>{"student.weight"});
}

/// The exporter's optimiser took the first 8 of 16 positions: they train in the table's place.
TEST(OptimisedExports, APartOfATableTrains) {
  const GoldenModel model = load("encoder", "dynamo_default");
  EXPECT_TRUE(model.noted("is what the exporter took of 'position.weight'"));
  expect_three_steps(model);
}

/// A recurrent layer's weights lie in the operator's order of gates: moved, no more.
TEST(OptimisedExports, RecurrentWeightsTrain) {
  expect_three_steps(load("recurrent", "dynamo_default"));
}

std::string refusal(const std::string& model) {
  try {
    load(model, "dynamo_default");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(OptimisedExports, WhatWouldTrainWronglyIsRefused) {
  EXPECT_NE(refusal("relative").find("'relative.weight' and repeats its numbers"),
            std::string::npos)
      << refusal("relative");
  EXPECT_NE(refusal("classes").find("was computed by the exporter from 'temperature'"),
            std::string::npos)
      << refusal("classes");
  for (const char* model : {"relative", "classes"}) {
    EXPECT_NE(refusal(model).find("optimize=False"), std::string::npos) << model;
  }
}

/// The file's signature says that the tables of which slices are left were buffers.
TEST(OptimisedExports, WhatWasComputedFromBuffersIsNotTrained) {
  expect_three_steps(load("rotary", "dynamo_default"));
}

TEST(LegacyExports, TablesOfSinesAreNoWeights) {
  const GoldenModel model = load("rotary", "legacy");
  EXPECT_TRUE(model.noted("'cos_cached' (f32[16, 4]) holds sines or cosines"));
  EXPECT_TRUE(model.noted("'sin_cached'"));
}

TEST(LegacyExports, NamesThatSayNothingAreListed) {
  const GoldenModel model = load("classes", "legacy");
  EXPECT_TRUE(model.noted("'temperature' trains; name what is a buffer with --freeze"));
  EXPECT_FALSE(model.noted("class_weight"));
}

/// scores + a table that trains: the gradient of Attention's mask is that of the sum.
TEST(Attention, MaskThatTrainsHasItsGradient) {
  ModelBuilder b(23, 11);
  b.input("x", {2, 2, 3, 4});
  std::vector<float> table;
  for (int i = 0; i < 9; ++i) table.push_back(0.1F * static_cast<float>(i % 4));
  b.floats("table", {1, 1, 3, 3}, table);
  b.node("Attention", {"x", "x", "x", "table"}, {"y"});
  b.node("Mul", {"y", "y"}, {"squares"});
  test::set_int(b.node("ReduceMean", {"squares"}, {"loss"}), "keepdims", 0);
  b.output("loss");
  const TemporaryFolder folder;
  ImportOptions options;
  options.evaluate = run_reference;
  Graph graph = OnnxFile(b.write(folder)).import(options);
  recognise(graph);
  const ValueId mask = graph.find("table");
  ASSERT_NE(mask, kNoValue);
  const ValueId loss = graph.loss;
  Graph forward = graph;
  const std::vector<ValueId> gradient = differentiate(graph, loss, std::vector{mask});
  ASSERT_NE(gradient[0], kNoValue);
  std::vector<float> values;
  for (int i = 0; i < 48; ++i) values.push_back(std::sin(static_cast<float>(i * i)));
  const NamedTensors feeds = {{"x", Tensor::from<float>({2, 2, 3, 4}, values, DType::f32)}};
  const Tensor got = evaluate_graph(graph, feeds, gradient)[0];
  constexpr float kStepSize = 1e-2F;
  for (size_t i = 0; i < table.size(); ++i) {
    double at[2];
    for (int side : {0, 1}) {
      std::vector<float> moved = table;
      moved[i] += side == 1 ? kStepSize : -kStepSize;
      Graph shifted = forward;
      shifted.sources.at(mask).kind = Source::Kind::data;
      shifted.sources.at(mask).data = Tensor::from<float>({1, 1, 3, 3}, moved, DType::f32);
      at[side] = evaluate_graph(shifted, feeds, std::vector{loss})[0].at(0);
    }
    EXPECT_NEAR(got.at(static_cast<int64_t>(i)), (at[1] - at[0]) / (2 * kStepSize), 1e-4) << i;
    EXPECT_GT(std::abs(got.at(static_cast<int64_t>(i))), 1e-5) << i;
  }
}

/// One node on x [1, 4, 2, 2] and initialisers a (integers) and f (floats).
std::string refusal_of(const std::string& op, const std::vector<std::string>& inputs,
                       const std::vector<int64_t>& a,
                       const std::vector<std::pair<std::string, int64_t>>& attributes = {}) {
  ModelBuilder b(18);
  b.input("x", {1, 4, 2, 2});
  b.ints("a", a);
  b.floats("f", {1}, {0.5F});
  auto& node = b.node(op, inputs, {"y"});
  for (const auto& [name, value] : attributes) test::set_int(node, name, value);
  b.output("y");
  const TemporaryFolder folder;
  ImportOptions options;
  options.evaluate = run_reference;
  try {
    OnnxFile(b.write(folder)).import(options);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("node 0 '" + op + "_0': op " + op), std::string::npos)
        << e.what();
    return e.what();
  }
  return "accepted";
}

TEST(Malformed, SizesThatOverflowAreRefused) {
  const int64_t huge = int64_t{1} << 62;
  auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal_of("Split", {"x"}, {}, {{"axis", 1}, {"num_outputs", 0}}), "num_outputs is 0");
  expect(refusal_of("Split", {"x"}, {}, {{"axis", 1}, {"num_outputs", int64_t{1} << 40}}),
         "the node has 1 outputs");
  expect(refusal_of("DepthToSpace", {"x"}, {}, {{"blocksize", int64_t{1} << 40}}), "cannot spread");
  expect(refusal_of("Pad", {"x", "a"}, {huge, 0, 0, 0, huge, 0, 0, 0}), "beyond any tensor");
  expect(refusal_of("Tile", {"x", "a"}, {huge, 4, 1, 1}), "repeats are");
  expect(refusal_of("Reshape", {"x", "a"}, {int64_t{1} << 32, int64_t{1} << 32, -1}),
         "beyond any tensor");
}

TEST(Malformed, OperandsThatMakeNoSenseAreRefused) {
  auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal_of("Relu", {"x", "f"}, {}), "one too many");
  expect(refusal_of("ReduceSum", {"x", "f"}, {}), "wanted integers");
  expect(refusal_of("GatherND", {"x", "a"}, {0, 7}), "index 7 is outside a dim of 4");
  expect(refusal_of("Concat", {"x", "", "x"}, {}, {{"axis", 0}}), "input 1 is missing");
  expect(refusal_of("DequantizeLinear", {"x", "f"}, {}), "quantised");
}

}  // namespace
}  // namespace shardrun
