// What import makes of convolutions, pools and batch normalisations that exporters write strangely,
// and how it refuses what cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "graph/onnx/import.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::ModelBuilder;
using test::set_int;
using test::set_ints;
using test::set_string;
using Ints = std::vector<int64_t>;

class OnnxImageImport : public test::ImportTest {
 protected:
  void expect_refusal(const ModelBuilder& b, const std::string& part) {
    const std::string said = refusal(b);
    EXPECT_NE(said.find(part), std::string::npos) << (said.empty() ? "accepted" : said);
  }
  static int count(const Graph& graph, const std::string& op) {
    const auto& nodes = graph.nodes();
    return static_cast<int>(
        std::count_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.op == op; }));
  }
};

std::vector<float> ramp(int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(0.25F * static_cast<float>(i % 7) - 0.5F);
  return out;
}

/// x [2, 4, 6, 5] convolved with w [6, 4 / group, 3, 3]; `adorn` sets attributes.
template <class F>
ModelBuilder conv_model(int64_t group, F&& adorn) {
  ModelBuilder b(17);
  b.input("x", {2, 4, 6, 5});
  b.floats("w", {6, 4 / group, 3, 3}, ramp(6 * 4 / group * 9));
  auto& node = b.node("Conv", {"x", "w"}, {"y"});
  if (group != 1) set_int(node, "group", group);
  adorn(node);
  b.output("y");
  return b;
}

TEST_F(OnnxImageImport, RefusesConvolutionsThatCannotBe) {
  auto refused = [&](int64_t group, const std::string& part, auto adorn) {
    expect_refusal(conv_model(group, adorn), part);
  };
  refused(1, "attribute pads is [1, 1], wanted 4 entries", [](auto& n) {
    set_ints(n, "pads", {1, 1});
  });
  refused(1, "attribute pads is [-1, 0, 0, 0], wanted entries of at least 0", [](auto& n) {
    set_ints(n, "pads", {-1, 0, 0, 0});
  });
  refused(1, "wanted entries of at least 1 and below 2^31", [](auto& n) {
    set_ints(n, "strides", {int64_t{1} << 31, 1});
  });
  refused(1, "attribute strides is [0, 1], wanted entries of at least 1", [](auto& n) {
    set_ints(n, "strides", {0, 1});
  });
  refused(1, "attribute kernel_shape is [3, 2], but the weights' is [3, 3]", [](auto& n) {
    set_ints(n, "kernel_shape", {3, 2});
  });
  refused(1, "give one of the two", [](auto& n) {
    set_string(n, "auto_pad", "SAME_UPPER");
    set_ints(n, "pads", {1, 1, 1, 1});
  });
  refused(1, "attribute auto_pad is 'SOME'", [](auto& n) { set_string(n, "auto_pad", "SOME"); });
  refused(1, "a window of 7 does not fit spatial dim 0", [](auto& n) {
    set_ints(n, "dilations", {3, 1});
  });
  refused(1, "group is 5, which does not divide", [](auto& n) { set_int(n, "group", 5); });
  refused(2, "of 2 channels in each of 1 groups", [](auto& n) {
    n.clear_attribute();
    set_int(n, "group", 1);
  });
  refused(1, "attribute 'padding' is not one of this operator's",
          [](auto& n) { set_int(n, "padding", 1); });
}

TEST_F(OnnxImageImport, ResolvesAutoPad) {
  for (const auto& [mode, low, high] : {std::tuple{"SAME_UPPER", Ints{0, 1}, Ints{1, 1}},
                                        {"SAME_LOWER", Ints{1, 1}, Ints{0, 1}},
                                        {"VALID", Ints{0, 0}, Ints{0, 0}}}) {
    const Graph graph = import(conv_model(2, [&, mode = mode](auto& n) {
      set_string(n, "auto_pad", mode);
      set_ints(n, "strides", {2, 1});  // 6 rows by 2: 3, which read 7; 5 columns, which read 7
    }));
    const auto conv = std::find_if(graph.nodes().begin(), graph.nodes().end(),
                                   [](const Node& node) { return node.op == "conv"; });
    ASSERT_NE(conv, graph.nodes().end());
    EXPECT_EQ(conv->attrs.ints("pads_low"), low) << mode;
    EXPECT_EQ(conv->attrs.ints("pads_high"), high) << mode;
    EXPECT_EQ(graph.type(conv->inputs[1]).shape, (Shape{2, 3, 2, 3, 3}));  // groups first
  }
}

/// PyTorch's newer exporter writes a bias of zeros where the module has none, of Conv3d as [O, 2].
TEST_F(OnnxImageImport, LeavesABiasOfZerosOut) {
  const auto model = [](float value, const std::vector<int64_t>& shape) {
    ModelBuilder b(17);
    b.input("x", {1, 2, 4, 4});
    b.floats("w", {3, 2, 1, 1}, ramp(6));
    b.floats("value", {1}, {value});
    b.ints("shape", shape);
    b.node("Expand", {"value", "shape"}, {"bias"});
    b.node("Conv", {"x", "w", "bias"}, {"y"});
    b.output("y");
    return b;
  };
  EXPECT_EQ(count(import(model(0, {3})), "add"), 0);
  EXPECT_EQ(count(import(model(0, {3, 2})), "add"), 0);
  EXPECT_EQ(count(import(model(0.5F, {3})), "add"), 1);
  expect_refusal(model(0.5F, {3, 2}),
                 "bias is f32[3, 2], wanted one number for each of 3 channels");
}

TEST_F(OnnxImageImport, RefusesOtherImages) {
  ModelBuilder integers(17);
  integers.input("x", {1, 1, 4, 4}, 2);  // uint8
  set_ints(integers.node("MaxPool", {"x"}, {"y"}), "kernel_shape", {2, 2});
  integers.output("y", {}, 2);
  expect_refusal(integers, "only floating images are");

  ModelBuilder flat(17);
  flat.input("x", {4, 4});
  flat.node("GlobalAveragePool", {"x"}, {"y"});
  flat.output("y");
  expect_refusal(flat, "wants [N, C, d…], got f32[4, 4]");

  ModelBuilder area(17);
  area.input("x", {1, 1, 4, 4});
  area.floats("scales", {4}, {1, 1, 2, 2});
  set_string(area.node("Resize", {"x", "", "scales"}, {"y"}), "mode", "area");
  area.output("y");
  expect_refusal(area,
                 "attribute mode='area' is not supported; supported are nearest, linear and cubic");

  // Weights between 0 and 1 are no integers.
  ModelBuilder whole(17);
  whole.input("x", {1, 1, 4, 4}, test::kInt64);
  whole.floats("scales", {4}, {1, 1, 2, 2});
  set_string(whole.node("Resize", {"x", "", "scales"}, {"y"}), "mode", "linear");
  whole.output("y");
  expect_refusal(whole, "mode linear of i64[1, 1, 4, 4] is not supported; Cast it");

  ModelBuilder rounded(17);
  rounded.input("x", {1, 1, 4, 4});
  rounded.floats("scales", {4}, {1, 1, 2, 2});
  set_string(rounded.node("Resize", {"x", "", "scales"}, {"y"}), "nearest_mode", "up");
  rounded.output("y");
  expect_refusal(rounded, "attribute nearest_mode='up' is not supported; supported are round_");

  ModelBuilder empty(17);
  empty.input("x", {1, 1, 0, 4});
  empty.ints("sizes", {1, 1, 2, 4});
  empty.node("Resize", {"x", "", "", "sizes"}, {"y"});
  empty.output("y");
  expect_refusal(empty, "dim 2 of f32[1, 1, 0, 4] is empty, wanted is 2");

  ModelBuilder groups(18);
  groups.input("x", {2, 6, 4});
  groups.floats("w", {4}, {1, 1, 1, 1});
  set_int(groups.node("GroupNormalization", {"x", "w", "w"}, {"y"}), "num_groups", 4);
  groups.output("y");
  expect_refusal(groups,
                 "num_groups is 4, which does not divide the 6 channels of x, f32[2, 6, 4]");

  ModelBuilder instance(18);
  instance.input("x", {2, 6, 4});
  instance.floats("w", {4}, {1, 1, 1, 1});
  instance.node("InstanceNormalization", {"x", "w", "w"}, {"y"});
  instance.output("y");
  expect_refusal(instance, "scale is f32[4], wanted [6] for x of f32[2, 6, 4]");
}

/// Group normalisation of one sample [1, 2, 2] in one group, scaled by a number for each group
/// before opset 21, for each channel from then on: 1, 2, 3, 4 have mean 2.5 and variance 1.25.
TEST_F(OnnxImageImport, GroupNormalizationScalesByGroupThenByChannel) {
  for (const int64_t opset : {int64_t{18}, int64_t{21}}) {
    ModelBuilder b(opset);
    b.input("x", {1, 2, 2});
    const std::vector<float> scale = opset < 21 ? std::vector<float>{2} : std::vector<float>{2, 4};
    b.floats("w", {static_cast<int64_t>(scale.size())}, scale);
    b.floats("b", {static_cast<int64_t>(scale.size())}, std::vector<float>(scale.size(), 1));
    set_int(b.node("GroupNormalization", {"x", "w", "b"}, {"y"}), "num_groups", 1);
    b.output("y");
    const Tensor x = Tensor::from<float>(Shape{1, 2, 2}, {1, 2, 3, 4}, DType::f32);
    const Tensor y = evaluate_graph(import(b), {{"x", x}})[0];
    for (int64_t i = 0; i < 4; ++i) {
      const double z = (static_cast<double>(i) - 1.5) / std::sqrt(1.25 + 1e-5);
      EXPECT_NEAR(y.at(i), 1 + (i < 2 || opset < 21 ? 2 : 4) * z, 1e-6) << "opset " << opset;
    }
  }
}

/// BatchNormalization of x [4, 2, 3], with its five vectors; `uses` nodes in a row.
ModelBuilder norm_model(int64_t opset, const std::vector<std::string>& outputs, int uses = 1,
                        int64_t batch = 4) {
  ModelBuilder b(opset);
  b.input("x", {batch, 2, batch == 1 ? 1 : 3});
  b.floats("w", {2}, {1.5F, 0.5F});
  b.floats("b", {2}, {0.25F, -0.5F});
  b.floats("mean", {2}, {0.1F, 0.2F});
  b.floats("var", {2}, {1.25F, 0.75F});
  std::string x = "x";
  for (int i = 0; i < uses; ++i) {
    std::vector<std::string> names = outputs;
    names[0] = "y" + std::to_string(i);
    for (size_t k = 1; k < names.size(); ++k) names[k] += std::to_string(i);
    auto& node = b.node("BatchNormalization", {x, "w", "b", "mean", "var"}, names);
    if (opset >= 14 && outputs.size() > 1) set_int(node, "training_mode", 1);
    x = names[0];
  }
  b.output(x);
  return b;
}

/// Before opset 14 five outputs mean training, from there an attribute does.
TEST_F(OnnxImageImport, EveryOpsetsTrainingForm) {
  NamedTensors feeds = {{"x", Tensor::from<float>({4, 2, 3}, ramp(24), DType::f32)}};
  std::vector<std::vector<double>> results;
  for (const auto& [opset, outputs] :
       {std::pair<int64_t, std::vector<std::string>>{13, {"y", "m", "v", "sm", "sv"}},
        {14, {"y", "m", "v"}},
        {15, {"y", "m", "v"}}}) {
    const Graph graph = import(norm_model(opset, outputs));
    EXPECT_EQ(report.batch_statistics, 1) << opset;
    EXPECT_EQ(report.promoted, 0) << opset;
    ASSERT_EQ(graph.updates.size(), 2u) << opset;
    const ValueId mean = graph.find("mean");
    EXPECT_EQ(graph.value(mean).role, Role::state);
    std::vector<double> values;
    for (ValueId id : {graph.outputs[0], graph.updates.at(mean)}) {
      const Tensor t = evaluate_graph(graph, feeds, std::vector{id})[0];
      for (int64_t i = 0; i < t.count(); ++i) values.push_back(t.at(i));
    }
    results.push_back(values);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[1], results[2]);
  import(norm_model(13, {"y"}));
  EXPECT_EQ(report.stored_statistics, 1);
  EXPECT_TRUE(noted("1 batch normalisations were exported in evaluation mode"));
}

/// A module that is called twice moves its averages twice, as in PyTorch.
TEST_F(OnnxImageImport, ModulesCalledTwiceMoveTheirStatisticsTwice) {
  const Graph graph = import(norm_model(17, {"y", "m", "v"}, 2));
  EXPECT_EQ(count(graph, "running_statistics"), 2);
  ASSERT_EQ(graph.updates.size(), 2u);
  const Node& last = graph.node(graph.value(graph.updates.at(graph.find("mean"))).producer);
  EXPECT_EQ(graph.value(last.inputs[0]).role, Role::computed);  // what the first call made
}

/// A module in evaluation mode reads the averages that were moved before it in the same forward().
TEST_F(OnnxImageImport, StoredStatisticsAreThoseThatACallBeforeMoved) {
  ModelBuilder b = norm_model(17, {"y", "m", "v"});
  b.graph().clear_output();
  b.node("BatchNormalization", {"y0", "w", "b", "mean", "var"}, {"z"});
  b.output("z");
  const Graph graph = import(b);
  const NamedTensors feeds = {{"x", Tensor::from<float>({4, 2, 3}, ramp(24), DType::f32)}};
  const auto first = std::find_if(graph.nodes().begin(), graph.nodes().end(),
                                  [](const Node& node) { return node.op == "batch_norm"; });
  ASSERT_NE(first, graph.nodes().end());
  const std::vector<Tensor> got = evaluate_graph(
      graph, feeds,
      std::vector{graph.outputs[0], first->outputs[0], graph.updates.at(graph.find("mean")),
                  graph.updates.at(graph.find("var"))});
  EXPECT_NEAR(got[0].at(0),
              (got[1].at(0) - got[2].at(0)) / std::sqrt(got[3].at(0) + 1e-5) * 1.5 + 0.25, 1e-5);
  EXPECT_GT(std::abs(got[2].at(0) - 0.1), 0.01);
  const Graph evaluated = evaluation_form(graph);
  const Tensor z = evaluate_graph(evaluated, feeds)[0];
  const double y = (ramp(24)[0] - 0.1) / std::sqrt(1.25 + 1e-5) * 1.5 + 0.25;
  EXPECT_NEAR(z.at(0), (y - 0.1) / std::sqrt(1.25 + 1e-5) * 1.5 + 0.25, 1e-5);
}

/// momentum=None averages over all batches: the older exporter writes the weight at the time, 1.
TEST_F(OnnxImageImport, StatisticsOfTheLastBatchAloneAreNoted) {
  ModelBuilder b = norm_model(17, {"y", "m", "v"});
  import(b);
  EXPECT_FALSE(noted("momentum"));
  test::set_float(*b.graph().mutable_node(0), "momentum", 0);
  import(b);
  EXPECT_TRUE(noted("'BatchNormalization_0' was exported with momentum 0"));
}

TEST_F(OnnxImageImport, OneValueAChannelHasNoVariance) {
  expect_refusal(norm_model(17, {"y", "m", "v"}, 1, 1), "use a larger batch");
  options.training = false;
  EXPECT_NO_THROW(import(norm_model(17, {"y", "m", "v"}, 1, 1)));
}

/// Fresh scales and running variances are all ones: the exporter's optimiser makes one tensor of
/// them, of the kind of whichever came first.
TEST_F(OnnxImageImport, WeightsMergedWithStatisticsAreRefusedOrSplit) {
  ModelBuilder b(20, 10);
  b.input("x", {4, 2, 3});
  b.floats("ones", {2}, {1, 1});
  b.floats("zeros", {2}, {0, 0});
  set_int(b.node("BatchNormalization", {"x", "ones", "zeros", "zeros", "ones"}, {"y", "m", "v"}),
          "training_mode", 1);
  b.output("y");
  for (const char* name : {"ones", "zeros"}) {
    auto* info = b.graph().add_value_info();
    ModelBuilder::set_info(info, name, {2}, test::kFloat);
    test::add_metadata(info, "pkg.torch.export.graph_signature.InputSpec.kind", "BUFFER");
    test::add_metadata(info, "pkg.onnxscript.optimizer.folded_from", "[]");
  }
  expect_refusal(b, "they would train as one");
  options.shared = ImportOptions::Shared::split;
  const Graph graph = import(b);
  EXPECT_EQ(graph.with_role(Role::parameter).size(), 2u);
  EXPECT_EQ(graph.with_role(Role::state).size(), 2u);
  EXPECT_EQ(graph.updates.size(), 2u);
}

/// Running means of two layers, all zeros, are one initialiser.
TEST_F(OnnxImageImport, StatisticsMergedWithEachOtherAreTwoAgain) {
  ModelBuilder b(20, 10);
  b.input("x", {4, 2, 3});
  b.floats("zeros", {2}, {0, 0});
  for (const std::string layer : {"a", "b"}) {
    b.floats(layer + ".weight", {2}, {1, 2});
    b.floats(layer + ".bias", {2}, {3, 4});
    b.floats(layer + ".var", {2}, {5, 6});
    b.node("BatchNormalization",
           {layer == "a" ? "x" : "ya", layer + ".weight", layer + ".bias", "zeros", layer + ".var"},
           {"y" + layer});
  }
  b.output("yb");
  auto* info = b.graph().add_value_info();
  ModelBuilder::set_info(info, "zeros", {2}, test::kFloat);
  test::add_metadata(info, "pkg.torch.export.graph_signature.InputSpec.kind", "BUFFER");
  test::add_metadata(info, "pkg.onnxscript.optimizer.folded_from", "[]");
  options.mode = ImportOptions::Mode::train;
  const Graph graph = import(b);
  EXPECT_EQ(graph.with_role(Role::parameter).size(), 4u);
  EXPECT_EQ(graph.with_role(Role::state).size(), 4u);
  options.mode = ImportOptions::Mode::exported;
  EXPECT_EQ(import(b).with_role(Role::parameter).size(), 4u);
}

/// What an exporter folded into a convolution no mode brings back.
TEST_F(OnnxImageImport, FoldedNormalisationIsNotedOrRefused) {
  for (const char* bias : {"conv1.weight_bias", "onnx::Conv_194"}) {
    ModelBuilder b(17);
    b.input("x", {1, 2, 4, 4});
    b.floats("conv1.weight", {3, 2, 1, 1}, ramp(6));
    b.floats(bias, {3}, {0.1F, 0.2F, 0.3F});
    b.node("Conv", {"x", "conv1.weight", bias}, {"y"});
    b.output("y");
    options.mode = ImportOptions::Mode::exported;
    import(b);
    EXPECT_TRUE(noted("holds a batch normalisation that the exporter folded")) << bias;
    options.mode = ImportOptions::Mode::train;
    expect_refusal(b, "--mode train cannot bring it back");
  }
}

}  // namespace
}  // namespace shardrun
