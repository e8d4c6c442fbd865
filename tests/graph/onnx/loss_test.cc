// Which output of a model is its loss, and the other names of its tensors.
#include <gtest/gtest.h>

#include "graph/onnx/loss_output.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using test::kFloat, test::kInt64, test::ModelBuilder;

// ---- the loss

/// Outputs by name and dims, each computed from the input or, where it is called "kept", from an
/// initialiser alone.
importer::LossOutput choose(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& outputs,
    const ImportOptions& options = {}, const std::string& kind = "") {
  ModelBuilder b;
  b.input("x", {4});
  b.floats("w", {}, {1});
  std::vector<importer::FlatNode> nodes;
  for (const auto& [name, dims] : outputs) {
    nodes.push_back({b.node("Identity", {name == "kept" ? "w" : "x"}, {name}), 17, name, nullptr});
    b.output(name, dims, name == "count" ? kInt64 : kFloat);
    if (kind.empty() || name != "state") continue;
    auto* entry = b.graph().mutable_output(b.graph().output_size() - 1)->add_metadata_props();
    entry->set_key("pkg.torch.export.graph_signature.OutputSpec.kind");
    entry->set_value(kind);
  }
  return importer::find_loss_output(b.graph(), nodes, options);
}

TEST(LossOutput, IsTheFirstScalarOutputOrTheOnlyOne) {
  EXPECT_EQ(choose({{"a", {}}}).name, "a");
  EXPECT_TRUE(choose({{"a", {}}}).note.empty());
  EXPECT_EQ(choose({{"a", {1}}, {"b", {}}}).name, "a");
  EXPECT_FALSE(choose({{"a", {}}, {"b", {}}}).note.empty());
  const importer::LossOutput only = choose({{"logits", {2, 8}}, {"b", {}}, {"count", {}}});
  EXPECT_EQ(only.name, "b");
  EXPECT_TRUE(only.is_own);
  EXPECT_NE(only.note.find("only scalar of 3 outputs"), std::string::npos) << only.note;
  const importer::LossOutput none = choose({{"logits", {2, 8}}, {"hidden", {2, -1}}});
  EXPECT_EQ(none.name, "logits");
  EXPECT_FALSE(none.is_own);
}

TEST(LossOutput, OfSeveralIsTheOneCalledLoss) {
  EXPECT_EQ(choose({{"logits", {2, 8}}, {"aux", {}}, {"out.loss", {}}}).name, "out.loss");
  try {
    choose({{"logits", {2, 8}}, {"aux", {}}, {"ce", {}}});
    FAIL();
  } catch (const Error& e) {
    const std::string message = e.what();
    for (const char* part : {"'aux', 'ce'", "--loss-output NAME"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  ImportOptions options;
  options.loss_output = "ce";
  EXPECT_EQ(choose({{"logits", {2, 8}}, {"aux", {}}, {"ce", {}}}, options).name, "ce");
  options.loss_output = "cross";
  EXPECT_THROW(choose({{"logits", {2, 8}}, {"ce", {}}}, options), Error);
  ImportOptions computed;  // --loss cross-entropy
  computed.has_own_loss = false;
  EXPECT_EQ(choose({{"logits", {2, 8}}, {"ce", {}}}, computed).name, "logits");
}

/// What a module returns of its own tensors is no loss.
TEST(LossOutput, IsNoTensorOfTheModule) {
  EXPECT_EQ(choose({{"logits", {2, 8}}, {"kept", {}}, {"ce", {}}}).name, "ce");
  EXPECT_EQ(choose({{"logits", {2, 8}}, {"state", {}}, {"ce", {}}}, {}, "BUFFER_MUTATION").name,
            "ce");
}

ImportReport import(const std::string& file, ImportOptions options, Graph* graph = nullptr) {
  options.evaluate = run_reference;
  ImportReport report;
  Graph made =
      OnnxFile(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx").import(options, &report);
  if (graph != nullptr) *graph = std::move(made);
  return report;
}

TEST(LossOutput, HasToBeANumber) {
  ImportOptions options;
  options.loss_output = "linear_1";
  try {
    import("loss_nano.dynamo", options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--loss-output 'linear_1': is f32[2, 6, 16]"),
              std::string::npos)
        << e.what();
  }
}

/// All parameters that the loss depends on train, also where it is not the first output.
TEST(LossOutput, DecidesWhatTrains) {
  for (const char* file : {"loss_nano.dynamo", "loss_nano.legacy"}) {
    Graph graph;
    const ImportReport report = import(file, {}, &graph);
    ASSERT_NE(graph.loss, kNoValue) << file;
    EXPECT_EQ(graph.type(graph.loss).shape, Shape{});
    ASSERT_EQ(report.parameters.size(), 4U);
    for (const auto& p : report.parameters) EXPECT_TRUE(p.trainable) << file << ": " << p.name;
    EXPECT_EQ(attach_loss(graph, {}), "");
  }
}

TEST(LossOutput, LogitsOfOnePositionAreExplained) {
  Graph graph;
  import("loss_last.dynamo", {}, &graph);
  try {
    attach_loss(graph, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("export it with targets"), std::string::npos) << e.what();
  }
}

// ---- names

const ImportReport::Parameter& parameter(const ImportReport& report, const std::string& name) {
  for (const ImportReport::Parameter& p : report.parameters) {
    if (p.name == name) return p;
  }
  ADD_FAILURE() << "no parameter '" << name << "'";
  return report.parameters.front();
}

int trained(const ImportReport& report) {
  return static_cast<int>(std::count_if(report.parameters.begin(), report.parameters.end(),
                                        [](const auto& p) { return p.trainable; }));
}

bool noted(const ImportReport& report, const std::string& text) {
  return std::any_of(report.notes.begin(), report.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

/// The newer exporter keeps the last name of a tied tensor, the older one the first.
TEST(TiedNames, FreezeByAnyOfThem) {
  ImportOptions options;
  options.freeze = {"embeddings"};
  const ImportReport newer = import("tied.dynamo", options);
  EXPECT_FALSE(parameter(newer, "head.decoder.weight").trainable);
  EXPECT_FALSE(parameter(newer, "embeddings.places.weight").trainable);
  EXPECT_EQ(trained(newer), 3);
  EXPECT_TRUE(noted(newer,
                    "'head.decoder.weight' does not train: it matches --freeze 'embeddings' as "
                    "'embeddings.words.weight'"));
  options.freeze = {"decoder"};
  const ImportReport older = import("tied.legacy", options);
  EXPECT_FALSE(parameter(older, "embeddings.words.weight").trainable);
  EXPECT_FALSE(parameter(older, "head.bias").trainable);
  EXPECT_TRUE(parameter(older, "embeddings.places.weight").trainable);
  EXPECT_TRUE(noted(older, "as 'head.decoder.weight'"));
}

/// 'head.bias' is what the head calls the bias that its decoder reads.
TEST(TiedNames, OfAModuleThatHandsItsTensorOn) {
  ImportOptions options;
  options.freeze = {"^head\\.bias$"};
  EXPECT_FALSE(parameter(import("tied.dynamo", options), "head.decoder.bias").trainable);
}

TEST(TrainOnly, TrainsNothingElse) {
  ImportOptions options;
  options.train_only = {"^mix\\.", "words"};
  for (const char* file : {"tied.dynamo", "tied.legacy"}) {
    const ImportReport report = import(file, options);
    EXPECT_EQ(trained(report), 3) << file;
    EXPECT_TRUE(parameter(report, "mix.weight").trainable) << file;
    EXPECT_EQ(parameter(report, "embeddings.places.weight").why, "--train-only does not match it");
  }
  options.freeze = {"mix.bias"};  // goes over it
  EXPECT_EQ(trained(import("tied.dynamo", options)), 2);
  options.train = {"places"};  // adds to it
  EXPECT_EQ(trained(import("tied.dynamo", options)), 3);
}

}  // namespace
}  // namespace shardrun
