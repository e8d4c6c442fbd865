// What PyTorch's exporters lose of a model and its file still shows: applied again, against
// PyTorch. The files come from tests/golden/make_lost.py.
#include <gtest/gtest.h>

#include <set>

#include "tests/graph/import_test.h"
#include "tests/support/golden_model.h"

namespace shardrun {
namespace {

using testing::GoldenModel;

constexpr double kTolerance = 1e-4;

struct Case {
  const char* model;
  const char* exporter;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }

class Lost : public ::testing::TestWithParam<Case> {};

TEST_P(Lost, LossGradientsAndThreeSteps) {
  const GoldenModel model = testing::load_golden(GetParam().model, GetParam().exporter, "");
  model.expect_first_pass(kTolerance);
  model.expect_three_steps(kTolerance);
}

INSTANTIATE_TEST_SUITE_P(
    All, Lost,
    ::testing::Values(Case{"losses", "dynamo"}, Case{"losses", "dynamo_default"},
                      Case{"scattered", "dynamo"}, Case{"scattered", "dynamo_default"}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.exporter; });

/// One note says what was applied, whatever the number of nodes.
TEST(LostArguments, AreNotedOnce) {
  const GoldenModel model = testing::load_golden("losses", "dynamo", "");
  EXPECT_TRUE(model.noted("applied as PyTorch was called"));
  EXPECT_TRUE(model.noted("label_smoothing=0.25 of 'node_cross_entropy_loss_3'"));
  EXPECT_TRUE(model.noted("label_smoothing=0.1 of 'node_cross_entropy_loss' and 2 more"));
  EXPECT_EQ(model.report.notes.size(), 1u);
}

class LostImport : public testing::ImportTest {
 protected:
  /// The probabilities of the dropouts of a golden file's graph.
  std::multiset<double> dropouts(const std::string& file) {
    report = {};
    const Graph graph =
        import_onnx(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx", options, &report);
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
    EXPECT_EQ(report.notes.size(), 1u);
    options.training = false;
    EXPECT_TRUE(dropouts(file).empty());
    EXPECT_TRUE(report.notes.empty());
  }
}

using testing::ModelBuilder;

/// x [2, 2, 3, 4] through a node of this call.
ModelBuilder attention_of(const std::string& op, const std::string& call) {
  ModelBuilder b(23, 11);
  b.model.set_producer_name("pytorch");
  b.input("x", {2, 2, 3, 4});
  const bool is_attention = op == "Attention";
  testing::add_metadata(
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
  b.input("y", {3}, testing::kInt64);
  auto& loss = b.node("SoftmaxCrossEntropyLoss", {"x", "y"}, {"loss"});
  testing::add_metadata(&loss, "pkg.torch.onnx.fx_node",
                        "%loss : [num_users=1] = call_function[target=torch.ops.aten."
                        "cross_entropy_loss.default](args = (%x, %y, %b_w), kwargs = {})");
  b.output("loss");
  EXPECT_NE(refusal(b).find("was called with class weights %b_w, which the exporter left out"),
            std::string::npos)
      << refusal(b);
}

}  // namespace
}  // namespace shardrun
