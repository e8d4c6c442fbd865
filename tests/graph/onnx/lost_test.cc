// What PyTorch's exporters lose of a model and its file still shows: applied again, against
// PyTorch. The files come from tests/golden/make_lost.py.
#include <gtest/gtest.h>

#include <set>

#include "graph/autodiff.h"
#include "tests/graph/onnx/import_test.h"
#include "tests/support/golden_model.h"

namespace shardrun {
namespace {

using test::GoldenModel;

constexpr double kTolerance = 1e-4;

struct Case {
  const char* model;
  const char* exporter;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }

class Lost : public testing::TestWithParam<Case> {};

/// Weights that the exporter folded a transposition into have lost their names; the losses show
/// what becomes of them.
TEST_P(Lost, LossGradientsAndThreeSteps) {
  const GoldenModel model = test::load_golden(GetParam().model, GetParam().exporter, {});
  Graph graph = model.forward;
  std::vector<ValueId> named;
  for (ValueId id : graph.with_role(Role::parameter)) {
    if (model.recorded.count("grad/" + graph.value(id).name) > 0) named.push_back(id);
  }
  ASSERT_GE(named.size(), 2u);
  const std::vector<ValueId> wanted = differentiate(graph, graph.loss, named);
  for (size_t i = 0; i < named.size(); ++i)
    ASSERT_NE(wanted[i], kNoValue) << graph.value(named[i]).name;
  const std::vector<Tensor> gradients = evaluate_graph(graph, model.feeds, wanted);
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string name = "grad/" + graph.value(named[i]).name;
    EXPECT_LE(test::relative_norm(gradients[i], model.recorded.at(name)), kTolerance) << name;
  }
  const NamedTensors after =
      test::expect_golden_losses(test::golden_training_graph(model.forward), model.feeds,
                                 model.recorded.at("losses"), kTolerance);
  if (!model.forward.updates.empty())
    model.compare("stats/", kTolerance, [&](const std::string& name) { return after.at(name); });
}

INSTANTIATE_TEST_SUITE_P(
    All, Lost,
    testing::Values(Case{"losses", "dynamo"}, Case{"losses", "dynamo_default"},
                    Case{"scattered", "dynamo"}, Case{"scattered", "dynamo_default"},
                    Case{"detached", "dynamo"}, Case{"detached", "dynamo_default"},
                    Case{"lost_fresh", "dynamo"}, Case{"lost_fresh", "dynamo_default"}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.exporter; });

/// One note says what was applied, whatever the number of nodes.
TEST(LostArguments, AreNotedOnce) {
  const GoldenModel model = test::load_golden("losses", "dynamo", {});
  EXPECT_TRUE(model.noted("applied as PyTorch was called"));
  EXPECT_TRUE(model.noted("label_smoothing=0.25 of 'node_cross_entropy_loss_3'"));
  EXPECT_TRUE(model.noted("label_smoothing=0.1 of 'node_cross_entropy_loss' and 2 more"));
  EXPECT_EQ(model.report.notes.size(), 1u);
}

class LostEpsilon : public test::ImportTest {};

/// x / sqrt(x^2 + 1e-8), of which the optimiser leaves x / sqrt(x^2); with an equal sum in its
/// place nothing is lost.
TEST_F(LostEpsilon, TakenForZeroIsNoted) {
  const auto warns = [&](const std::string& made, const std::string& wanted) {
    test::ModelBuilder b;
    b.input("x", {4, 3});
    const auto call = [](const std::string& op, const std::string& args) {
      return "%" + op + " : [num_users=1] = call_function[target=torch.ops.aten." + op +
             ".default](args = (" + args + "), kwargs = {})";
    };
    const std::string root = call("rsqrt", "%" + wanted + ",");
    test::add_metadata(&b.node("Mul", {"x", "x"}, {made}), "pkg.torch.onnx.fx_node",
                       call(made, "%x, %x"));
    test::add_metadata(&b.node("Sqrt", {made}, {"val_1"}), "pkg.torch.onnx.fx_node", root);
    test::add_metadata(&b.node("Reciprocal", {"val_1"}, {"rsqrt"}), "pkg.torch.onnx.fx_node", root);
    b.output("rsqrt", {4, 3});
    import(b);
    return noted("'rsqrt' was called with a sum that the optimiser");
  };
  EXPECT_TRUE(warns("mul", "add_3"));
  EXPECT_FALSE(warns("mul", "mul"));
  EXPECT_FALSE(warns("add", "add_3"));
}

class LostScale : public test::ImportTest {};

/// Half of 5 pixels is 2, and the newer exporter writes that size of an antialiased resize. PyTorch
/// resizes by 0.5 all the same, not by 0.4.
TEST_F(LostScale, OfASizeThatWasRounded) {
  const auto resized = [&](const std::string& args, const std::string& size) {
    test::ModelBuilder b;
    b.input("x", {1, 1, 5, 4});
    b.ints("sizes", {1, 1, 2, 2});
    auto& node = b.node("Resize", {"x", "", "", "sizes"}, {"y"});
    test::set_string(node, "mode", "linear");
    test::set_int(node, "antialias", 1);
    test::set_int(node, "exclude_outside", 1);
    test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                       "%y : [num_users=1] = call_function[target=torch.ops.aten." + size +
                           "](args = (" + args + "), kwargs = {})");
    b.output("y");
    std::vector<float> pixels;
    for (int i = 0; i < 20; ++i) pixels.push_back(static_cast<float>(i * i % 17));
    return evaluate_graph(import(b), {{"x", floats({1, 1, 5, 4}, pixels)}})[0];
  };
  // torch.nn.functional.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)
  const std::vector<double> want = {6.857143, 7.367347, 10.71429, 7.696428};
  for (const char* args : {"%x, [2, 2], False, 0.5, 0.5", "%x, None, False, [0.5, 0.5]"}) {
    const Tensor y = resized(args, "_upsample_bilinear2d_aa.default");
    for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(y.at(i), want[static_cast<size_t>(i)], 1e-5) << i;
    EXPECT_TRUE(noted("scale_factor=0.5, 0.5"));
  }
  // interpolate(x, size=(2, 2), mode="bilinear", antialias=True)
  const std::vector<double> by_size = {8.188313, 7.7013, 8.415584, 6.357142};
  const Tensor y = resized("%x, [2, 2], False, None, None", "_upsample_bilinear2d_aa.default");
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(y.at(i), by_size[static_cast<size_t>(i)], 1e-5) << i;
  EXPECT_TRUE(report.restored.empty());
}

class LostDivisor : public test::ImportTest {};

/// torch.nn.functional.avg_pool2d(x, 2, divisor_override=3)
TEST_F(LostDivisor, OfAnAverage) {
  for (const auto& [divisor, want] : {std::pair{"3", 14.0 / 3}, std::pair{"None", 14.0 / 4}}) {
    test::ModelBuilder b;
    b.input("x", {1, 1, 2, 2});
    auto& node = b.node("AveragePool", {"x"}, {"y"});
    test::set_ints(node, "kernel_shape", {2, 2});
    test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                       std::string("%y : [num_users=1] = call_function[target=torch.ops.aten."
                                   "avg_pool2d.default](args = (%x, [2, 2], [], [0, 0], False, "
                                   "True, ") +
                           divisor + "), kwargs = {})");
    b.output("y");
    const Tensor y = evaluate_graph(import(b), {{"x", floats({1, 1, 2, 2}, {2, 3, 4, 5})}})[0];
    EXPECT_NEAR(y.at(0), want, 1e-6) << divisor;
    EXPECT_EQ(noted("divisor_override=3"), divisor == std::string("3"));
  }
}

TEST(LostWeights, OfAFreshModelAreRestoredAndNoted) {
  const GoldenModel model = test::load_golden("lost_fresh", "dynamo_default", {});
  EXPECT_TRUE(
      model.noted("biases of zeros that the exporter removed train again: 'conv.bias', "
                  "'transposed.bias', 'depthwise.bias' and 2 more"));
  EXPECT_TRUE(
      model.noted("weights that the exporter merged, being equal, are apart again: "
                  "'pool.running_mean', 'pool.running_var', 'groups.1.weight' and 21 more"));
  EXPECT_TRUE(
      model.noted("nothing in the graph reads the parameters 'unused.bias', 'unused.weight'"));
  const GoldenModel whole = test::load_golden("lost_fresh", "dynamo", {});
  EXPECT_EQ(whole.forward.trainable.size(), model.forward.trainable.size());
}

class LostImport : public test::ImportTest {
 protected:
  /// The probabilities of the dropouts of a golden file's graph.
  std::multiset<double> dropouts(const std::string& file) {
    report = {};
    const Graph graph =
        OnnxFile(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx").import(options, &report);
    std::multiset<double> out;
    for (const Node& node : graph.nodes()) {
      if (node.op == "dropout") out.insert(node.attrs.f("p"));
    }
    return out;
  }
};

/// Between softmax and product, where fusing finds it (Exports.DropoutGoesIntoAttention).
TEST_F(LostImport, AttentionDropout) {
  for (const char* file : {"attentions.dynamo", "attentions.dynamo_default", "attentions.legacy"}) {
    SCOPED_TRACE(file);
    options.training = true;
    EXPECT_EQ(dropouts(file), (std::multiset<double>{0.25, 0.5}));
    EXPECT_TRUE(noted("dropout_p=0.25 of '"));
    EXPECT_TRUE(noted("dropout_p=0.5 of '"));
    const bool older = std::string(file).ends_with("legacy");
    EXPECT_EQ(noted("this exporter tells neither parameters from buffers"), older);
    EXPECT_EQ(report.notes.size(), older ? 2u : 1u);
    options.training = false;
    EXPECT_TRUE(dropouts(file).empty());
    EXPECT_TRUE(report.notes.empty());
  }
}

/// The notes or the error of a golden file.
class FoldedNorms : public LostImport {
 protected:
  std::string said(const std::string& file) {
    try {
      dropouts(file);
    } catch (const Error& e) {
      return e.what();
    }
    std::string all;
    for (const std::string& note : report.notes) all += note + "\n";
    return all;
  }
};

TEST_F(FoldedNorms, OfAModelInTrainingModeAreRefused) {
  for (const auto mode : {ImportOptions::Mode::exported, ImportOptions::Mode::train}) {
    options.mode = mode;
    const std::string text = said("folded.dynamo_default");
    EXPECT_NE(text.find("'a.weight' holds the batch normalisation 'norm_a', which the exporter "
                        "folded into Conv (one of 3) though the model was in training mode"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("optimize=False"), std::string::npos) << text;
  }
}

/// Also where the folded bias has the name of the convolution's, or none is left.
TEST_F(FoldedNorms, OfAModelInEvaluationModeAreNotedOnceAndRefusedByModeTrain) {
  for (const char* file : {"folded.dynamo_default_eval", "folded.legacy_eval"}) {
    SCOPED_TRACE(file);
    options.mode = ImportOptions::Mode::exported;
    const std::string note = said(file);
    EXPECT_NE(note.find("the model trains without it"), std::string::npos) << note;
    EXPECT_EQ(note.find("the model trains without it"), note.rfind("the model trains without it"));
    options.mode = ImportOptions::Mode::train;
    const std::string refusal = said(file);
    EXPECT_NE(refusal.find("--mode train cannot bring it back"), std::string::npos) << refusal;
  }
}

TEST_F(LostImport, AGradientThatWouldFlowWhereNoneDidIsRefused) {
  try {
    dropouts("quantised.dynamo_default");
    FAIL() << "a lost detach() was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'mse_loss_1' was called with a detached value"),
              std::string::npos)
        << e.what();
  }
}

using test::ModelBuilder;

/// x [2, 2, 3, 4] through a node of this call.
ModelBuilder attention_of(const std::string& op, const std::string& call) {
  ModelBuilder b(23, 11);
  b.model.set_producer_name("pytorch");
  b.input("x", {2, 2, 3, 4});
  const bool is_attention = op == "Attention";
  test::add_metadata(
      &b.node(
          op,
          is_attention ? std::vector<std::string>{"x", "x", "x"} : std::vector<std::string>{"x"},
          {"y"}),
      "pkg.torch.onnx.fx_node",
      "%y : [num_users=1] = call_function[target=torch.ops.aten." + call + ", kwargs = {})");
  b.output("y", {2, 2, 3, 4});
  return b;
}

TEST_F(LostImport, DropoutOfTheOperatorAttention) {
  const Graph graph = import(attention_of(
      "Attention", "scaled_dot_product_attention.default](args = (%x, %x, %x, None, 0.25)"));
  EXPECT_TRUE(std::any_of(graph.nodes().begin(), graph.nodes().end(),
                          [](const Node& node) { return node.op == "dropout"; }));
  EXPECT_TRUE(noted("dropout_p=0.25"));
  import(attention_of("Attention",
                      "scaled_dot_product_attention.default](args = (%x, %x, %x, None, 0.0)"));
  EXPECT_TRUE(report.notes.empty());
}

/// An attention in pieces that are not known is not touched, and the note says what helps.
TEST_F(LostImport, DropoutThatHasNoPlaceIsNoted) {
  import(attention_of(
      "Relu", "_scaled_dot_product_flash_attention_for_cpu.default](args = (%x, %x, %x, 0.5)"));
  EXPECT_TRUE(noted("dropout_p=0.5 of the attention 'y' is not applied"));
  EXPECT_TRUE(noted("attn_implementation=\"eager\""));
}

/// A Dropout without training_mode is inactive, unless PyTorch wrote it.
TEST_F(LostImport, InactiveDropout) {
  ModelBuilder b;
  b.input("x", {3, 2});
  b.floats("ratio", {}, {0.25F});
  b.node("Dropout", {"x", "ratio"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_TRUE(noted("Dropout nodes that were exported inactive drop nothing: 'Dropout_0'"));
  EXPECT_TRUE(noted("attn_implementation=\"eager\""));
  b.model.set_producer_name("pytorch");
  import(b);
  EXPECT_TRUE(noted("dropout_p=0.25 of 'Dropout_0'"));
}

TEST_F(LostImport, ClassWeightsThatAreLeftOutAreRefused) {
  ModelBuilder b;
  b.input("x", {3, 2});
  b.input("y", {3}, test::kInt64);
  auto& loss = b.node("SoftmaxCrossEntropyLoss", {"x", "y"}, {"loss"});
  test::add_metadata(&loss, "pkg.torch.onnx.fx_node",
                     "%loss : [num_users=1] = call_function[target=torch.ops.aten."
                     "cross_entropy_loss.default](args = (%x, %y, %b_w), kwargs = {})");
  b.output("loss");
  EXPECT_NE(refusal(b).find("was called with class weights %b_w, which the exporter left out"),
            std::string::npos)
      << refusal(b);
}

/// y = sin(x w), where the call of sin says that its argument was `argument`.
ModelBuilder sine_of(const std::string& argument) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {3, 2});
  b.floats("w", {2, 2}, {1, 2, 3, 4});
  auto call = [&](::onnx::NodeProto& node, const std::string& result, const std::string& of) {
    test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                       "%" + result + " : [num_users=1] = call_function[target=torch.ops.aten." +
                           of + ", kwargs = {})");
    test::add_metadata(&node, "pkg.onnxscript.rewriter.rule_name", "Some");
  };
  call(b.node("MatMul", {"x", "w"}, {"mm"}), "mm", "mm.default](args = (%x, %p_w)");
  call(b.node("Sin", {"mm"}, {"sin"}), "sin", "sin.default](args = (%" + argument + ",)");
  b.output("sin", {3, 2});
  test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                     "\n# inputs\np_w: PARAMETER target='w'\np_scale: PARAMETER "
                     "target='scale'\nx: USER_INPUT\n\n# outputs\nsin: USER_OUTPUT\n");
  return b;
}

/// x * 1 is taken out also where the 1 was a weight. One that nothing reads is another matter.
TEST_F(LostImport, AParameterThatIsGoneWithItsStepIsRefused) {
  const std::string text = refusal(sine_of("mul"));
  EXPECT_NE(text.find("took out 'mul', and of the parameters 'scale' nothing is left"),
            std::string::npos)
      << text;
  options.freeze = {"^scale$"};
  import(sine_of("mul"));
  EXPECT_EQ(report.gone, std::vector<std::string>{"scale"});
  options.freeze.clear();
  import(sine_of("mm"));
  EXPECT_TRUE(noted("nothing in the graph reads the parameters 'scale'"));
  import(sine_of("view"));  // only moves
  EXPECT_TRUE(noted("nothing in the graph reads the parameters 'scale'"));
}

/// nn.LSTM(3, 2, proj_size=1): the exporter takes weights of one hidden number, h's.
TEST_F(LostImport, AnLstmWithAProjectionIsRefused) {
  for (const bool projected : {true, false}) {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("x", {3, 2, 3});
    b.floats("w", {1, 4, 3}, std::vector<float>(12, 0.5F));
    b.floats("r", {1, 4, 1}, std::vector<float>(4, 0.5F));
    test::add_metadata(&b.node("LSTM", {"x", "w", "r"}, {"y"}), "pkg.torch.onnx.fx_node",
                       std::string("%lstm : [num_users=1] = call_function[target=torch.ops.aten."
                                   "lstm.input](args = (%x, [%zeros, %zeros_1], [%p_w, %p_r") +
                           (projected ? ", %p_projection" : "") +
                           "], False, 1, 0.0, True, False, False), kwargs = {})");
    b.output("y");
    test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                       "\n# inputs\np_w: PARAMETER target='w'\np_r: PARAMETER target='r'\n"
                       "p_projection: PARAMETER target='projection'\nx: USER_INPUT\n\n# outputs\n"
                       "y: USER_OUTPUT\n");
    options.freeze = {"^projection$"};
    const std::string text = refusal(b);
    EXPECT_EQ(
        text.find("'projection' projects the states of an LSTM (proj_size)") != std::string::npos,
        projected)
        << text;
    EXPECT_EQ(text.empty(), !projected) << text;
  }
}

/// The sizes of what the graph returns stand with its outputs.
TEST_F(LostImport, TheBiasOfALastLayerIsRestored) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {3, 2});
  b.floats("w", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  test::add_metadata(&b.node("Gemm", {"x", "w"}, {"y"}), "pkg.torch.onnx.fx_node",
                     "%y : [num_users=1] = call_function[target=torch.ops.aten.linear.default]("
                     "args = (%x, %p_w, %p_b), kwargs = {})");
  b.output("y", {3, 4});
  test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                     "\n# inputs\np_w: PARAMETER target='w'\np_b: PARAMETER target='b'\nx: "
                     "USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n");
  const Graph graph = import(b);
  ASSERT_NE(graph.find("b"), kNoValue);
  EXPECT_EQ(graph.type(graph.find("b")).shape, (Shape{4}));
  EXPECT_TRUE(noted("biases of zeros that the exporter removed train again: 'b'"));
}

/// exp(w) of zeros is computed ahead, and merged with other ones: then nothing names w any more.
TEST_F(LostImport, AParameterWhoseResultWasMergedWithAConstantIsRefused) {
  const auto scaled_by = [&](const std::string& factor) {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("x", {3, 2});
    b.floats("ones", {2}, {1, 1});
    test::add_metadata(&b.node("Mul", {"x", "ones"}, {"mul"}), "pkg.torch.onnx.fx_node",
                       "%mul : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor]("
                       "args = (%x, %" +
                           factor + "), kwargs = {})");
    b.output("mul", {3, 2});
    test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                       "\n# inputs\np_w: PARAMETER target='w'\nb_ones: BUFFER target='ones' "
                       "persistent=True\nx: USER_INPUT\n\n# outputs\nmul: USER_OUTPUT\n");
    return b;
  };
  EXPECT_NE(
      refusal(scaled_by("exp")).find("took out 'exp', and of the parameters 'w' nothing is left"),
      std::string::npos);
  EXPECT_EQ(refusal(scaled_by("b_ones")).find("took out"), std::string::npos);
}

/// gamma.view(1, -1, 1, 1) is computed ahead by the newer exporter's optimiser. Begun as equal
/// numbers it could have been an expand() of one, which its name says it was not.
TEST_F(LostImport, AVectorThatWasGivenDimsTrainsAsItself) {
  const auto scaled_by = [&](const std::string& step) {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("x", {2, 3, 4, 4});
    auto& stored = b.floats(step, {1, 3, 1, 1}, {0.5F, 0.5F, 0.5F});
    test::add_metadata(&stored, "pkg.onnxscript.optimizer.folded_from", "['gamma', 'val_0']");
    b.node("Mul", {"x", step}, {"y"});
    b.output("y", {2, 3, 4, 4});
    test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                       "\n# inputs\np_gamma: PARAMETER target='gamma'\nx: USER_INPUT\n\n# "
                       "outputs\ny: USER_OUTPUT\n");
    return b;
  };
  const Graph graph = import(scaled_by("view"));
  const ValueId gamma = graph.find("gamma");
  ASSERT_NE(gamma, kNoValue);
  EXPECT_EQ(graph.type(gamma).shape, (Shape{3}));
  EXPECT_TRUE(graph.trainable.at(gamma));
  EXPECT_NE(refusal(scaled_by("expand")).find("repeats its numbers"), std::string::npos);
}

/// A weight of which an optimiser computed the standardisation ahead: its last step moved numbers,
/// and no name says what the steps before it were.
TEST_F(LostImport, AStandardisedWeightIsNotTrainedInItsPlace) {
  const auto reads = [&](const std::vector<float>& numbers) {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("x", {2, 4});
    auto& stored = b.floats("view_1", {2, 4}, numbers);
    test::add_metadata(&stored, "pkg.onnxscript.optimizer.folded_from",
                       "['getitem', 'view', 'weight', 'val_0']");
    test::set_int(b.node("Gemm", {"x", "view_1"}, {"y"}), "transB", 1);
    b.output("y", {2, 2});
    test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                       "\n# inputs\np_weight: PARAMETER target='weight'\nx: USER_INPUT\n\n# "
                       "outputs\ny: USER_OUTPUT\n");
    return b;
  };
  EXPECT_NE(
      refusal(reads({1.2F, -1.2F, 0.75F, -0.75F, 1.3F, -1.3F, 0.55F, -0.55F}))
          .find("'view_1' (f32[2, 4]) was computed by the exporter from 'weight' by arithmetic"),
      std::string::npos);
  EXPECT_EQ(refusal(reads({1.2F, -1.1F, 0.75F, -0.75F, 1.3F, -1.3F, 0.55F, -0.55F}))
                .find("by arithmetic"),
            std::string::npos);
}

/// y of two dropouts of x that were merged; `made`: what lies between.
ModelBuilder merged_dropouts(bool relu_between) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {64, 2});
  b.floats("ratio", {}, {0.5F});
  b.graph().add_initializer()->set_name("mode");
  b.graph().mutable_initializer(1)->set_data_type(::onnx::TensorProto::BOOL);
  b.graph().mutable_initializer(1)->add_int32_data(1);
  auto call = [&](::onnx::NodeProto& node, const std::string& result, const std::string& of) {
    test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                       "%" + result + " : [num_users=1] = call_function[target=torch.ops.aten." +
                           of + ", kwargs = {})");
  };
  call(b.node("Dropout", {"x", "ratio", "mode"}, {"getitem"}), "native_dropout",
       "native_dropout.default](args = (%x, 0.5, True)");
  std::string one = "getitem", other = "getitem_2";
  if (relu_between) {
    call(b.node("Relu", {"getitem"}, {"relu"}), "relu", "relu.default](args = (%getitem,)");
    one = "relu", other = "relu_1";
  }
  call(b.node("Sub", {one, one}, {"y"}), "sub",
       "sub.Tensor](args = (%" + one + ", %" + other + ")");
  b.output("y", {64, 2});
  return b;
}

/// The newer exporter's optimiser takes one of two equal dropouts out, and then what follows them.
TEST_F(LostImport, MergedDropoutsDrawAnewOrAreRefused) {
  const Graph graph = import(merged_dropouts(false));
  std::set<int64_t> keys;
  for (const Node& node : graph.nodes()) {
    if (node.op == "dropout") keys.insert(node.attrs.i("key"));
  }
  EXPECT_EQ(keys.size(), 2u);
  EXPECT_TRUE(noted("random numbers of its own of 'getitem_2'"));
  EXPECT_NE(refusal(merged_dropouts(true)).find("'sub' was called with random numbers of its own"),
            std::string::npos)
      << refusal(merged_dropouts(true));
}

/// Two values of a group, and one that the exporter took apart: nothing was merged.
TEST_F(LostImport, DropoutsBeforeAnAttentionThatWasTakenApartAreNotMerged) {
  ModelBuilder b = merged_dropouts(false);
  b.graph().clear_node();
  b.graph().clear_output();
  const auto call = [&](::onnx::NodeProto& node, const std::string& result, const std::string& of) {
    test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                       "%" + result + " : [num_users=1] = call_function[target=torch.ops.aten." +
                           of + ", kwargs = {})");
  };
  call(b.node("Dropout", {"x", "ratio", "mode"}, {"getitem"}), "native_dropout",
       "native_dropout.default](args = (%x, 0.5, True)");
  b.ints("shape", {2, 64});
  call(b.node("Reshape", {"getitem", "shape"}, {"view"}), "view",
       "view.default](args = (%getitem, [2, 64])");
  call(b.node("Transpose", {"getitem"}, {"val_1"}), "bmm", "bmm.default](args = (%view, %view_1)");
  call(b.node("MatMul", {"val_1", "getitem"}, {"val_2"}), "bmm",
       "bmm.default](args = (%view, %view_1)");
  call(b.node("MatMul", {"view", "getitem"}, {"bmm"}), "bmm",
       "bmm.default](args = (%view, %view_1)");
  b.output("bmm", {2, 2});
  EXPECT_EQ(refusal(b), "");
}

/// The older exporter writes a plain look-up; a fresh table has zeros where padding_idx is.
TEST_F(LostImport, APaddingRowOfZerosDoesNotTrainInOlderExports) {
  auto padding = [&](const std::vector<float>& table) -> int64_t {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("t", {5}, test::kInt64);
    b.floats("e", {3, 2}, table);
    b.node("Gather", {"e", "t"}, {"y"});
    b.output("y", {5, 2});
    const Graph graph = import(b);
    const auto& nodes = graph.nodes();
    const auto gather = std::find_if(nodes.begin(), nodes.end(),
                                     [](const Node& node) { return node.op == "gather"; });
    return gather == nodes.end() ? -2 : gather->attrs.i("padding", -1);
  };
  EXPECT_EQ(padding({0, 0, 1, 2, 3, 4}), 0);
  EXPECT_TRUE(noted("padding_idx=0 (its row is zeros) of 'e'"));
  EXPECT_TRUE(noted("this exporter tells neither parameters from buffers"));
  EXPECT_EQ(padding({1, 2, 3, 4, 0, 0}), 2);
  EXPECT_EQ(padding({0, 1, 1, 2, 3, 4}), -1);
  EXPECT_EQ(padding({0, 0, 0, 0, 3, 4}), -1);
}

}  // namespace
}  // namespace shardrun
