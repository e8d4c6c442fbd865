// Exports that would train wrongly as they stand: each is repaired with a note, or refused with the
// way out.
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"
#include "tests/graph/onnx/imported.h"

namespace shardrun {
namespace {

using test::Imported;

Imported import_file(const std::string& path, ImportOptions::Shared shared) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.shared = shared;
  Imported out;
  out.graph = OnnxFile(path).import(options, &out.report);
  return out;
}
Imported import(const std::string& file,
                ImportOptions::Shared shared = ImportOptions::Shared::refuse) {
  return import_file(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx", shared);
}

/// Losses of a few SGD steps on fixed tokens.
std::vector<double> train(Graph graph) {
  recognise(graph);
  attach_loss(graph, {});
  graph.outputs.clear();
  OptimizerOptions options;
  options.kind = OptimizerKind::sgd;
  attach_optimizer(graph, options);
  check_graph(graph);
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < 32; ++i) {
    tokens.push_back(i * 7 % 32);
    targets.push_back((i * 7 + 3) % 32);
  }
  Interpreter interpreter(graph);
  std::vector<double> losses;
  for (int64_t step = 1; step <= 4; ++step) {
    const NamedTensors feeds = {{"idx", Tensor::from<int64_t>({4, 8}, tokens, DType::i64)},
                                {kTarget, Tensor::from<int64_t>({4, 8}, targets, DType::i64)},
                                {kLearningRate, Tensor::from<float>({}, {0.3F}, DType::f32)},
                                {kStep, Tensor::scalar_i64(step)}};
    losses.push_back(interpreter.step({feeds}, std::vector{graph.metrics.at("loss")})[0].at(0));
  }
  return losses;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

constexpr double kSame = 1e-5, kOther = 1e-3;

/// The calls in the metadata name each weight that was merged.
TEST(Exports, DynamoDefaultOnFreshWeightsIsRepaired) {
  const std::vector<double> want = train(import("fresh.dynamo").graph);
  const Imported found = import("fresh.dynamo_default");
  EXPECT_EQ(found.notes("weights that the exporter merged, being equal, are apart again"), 1);
  EXPECT_EQ(found.parameters(), 28);  // as many as the model has
  EXPECT_EQ(train(found.graph), want);
  // And this is what it would have done without a word.
  const Imported merged = import("fresh.dynamo_default", ImportOptions::Shared::keep);
  EXPECT_GE(largest_difference(train(merged.graph), want), kOther);
}

/// A file whose nodes' metadata are gone.
class WithoutCalls : public testing::Test {
 protected:
  WithoutCalls() {
    ::onnx::ModelProto model;
    std::ifstream in(std::string(SHARDRUN_GOLDEN) + "/fresh.dynamo_default.onnx");
    model.ParseFromIstream(&in);
    for (auto& node : *model.mutable_graph()->mutable_node()) node.clear_metadata_props();
    test::write_bytes(folder_ / "model.onnx", model.SerializeAsString());
  }
  Imported load(ImportOptions::Shared shared) const {
    return import_file((folder_ / "model.onnx").string(), shared);
  }

 private:
  const test::TemporaryFolder folder_;
};

TEST_F(WithoutCalls, MergedWeightsAreRefusedWithTheRecipe) {
  try {
    load(ImportOptions::Shared::refuse);
    FAIL() << "merged weights were accepted";
  } catch (const Error& e) {
    const std::string message = e.what();
    for (const char* part :
         {"h.0.ln_1.weight", "feeds 5 nodes", "optimize=False", "--shared split"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
}

TEST_F(WithoutCalls, MergedWeightsSplitAgainTrainAsTheyShould) {
  const Imported split = load(ImportOptions::Shared::split);
  EXPECT_EQ(split.notes("split into"), 4);  // ones, zeros of three sizes
  EXPECT_EQ(split.parameters(), 28);
  EXPECT_LE(largest_difference(train(split.graph), train(import("fresh.dynamo").graph)), kSame);
}

TEST(Exports, LegacyDefaultIsRepaired) {
  const Imported found = import("fresh.legacy_default");
  EXPECT_EQ(found.notes("had been merged with"), 14);
  EXPECT_EQ(found.notes("is tied to 'wte.weight' transposed"), 1);
  EXPECT_EQ(found.notes("evaluation mode"), 1);
  EXPECT_EQ(found.parameters(), 28);
  EXPECT_LE(largest_difference(train(found.graph), train(import("fresh.dynamo").graph)), kSame);
}

/// d loss / d table is what flows back through the lookup and through the head together.
TEST(Exports, GradientOfATiedWeightIsTheSumOfItsUses) {
  for (const char* file : {"fresh.dynamo", "fresh.legacy_default"}) {
    SCOPED_TRACE(file);
    Graph graph = import(file).graph;
    attach_loss(graph, {});
    ValueId table = graph.find("wte.weight");
    if (table == kNoValue) table = graph.find("head.weight");
    ASSERT_NE(table, kNoValue);
    ASSERT_EQ(graph.type(table).shape, (Shape{32, 16}));
    // The same graph with a table of its own for the lookup.
    Graph apart = graph;
    const ValueId lookup =
        apart.add_persistent("lookup", apart.type(table), Role::parameter, apart.sources.at(table));
    int moved = 0;
    for (size_t n = 0; n < apart.nodes().size(); ++n) {
      Node& node = apart.node(static_cast<NodeId>(n));
      if (node.op != "gather" || node.inputs[0] != table) continue;
      node.inputs[0] = lookup;
      ++moved;
    }
    ASSERT_EQ(moved, 1);
    NamedTensors feeds;
    std::vector<int64_t> tokens(32);
    for (size_t i = 0; i < 32; ++i) tokens[i] = static_cast<int64_t>(i * 5 % 32);
    feeds["idx"] = feeds[kTarget] = Tensor::from<int64_t>({4, 8}, tokens, DType::i64);
    const Tensor sum =
        evaluate_graph(graph, feeds, differentiate(graph, graph.loss, std::vector{table}))[0];
    const auto parts =
        evaluate_graph(apart, feeds, differentiate(apart, apart.loss, std::vector{table, lookup}));
    double largest = 0;
    for (int64_t i = 0; i < sum.count(); ++i) {
      EXPECT_NEAR(sum.at(i), parts[0].at(i) + parts[1].at(i), 1e-6);
      largest = std::max(largest, std::min(std::abs(parts[0].at(i)), std::abs(parts[1].at(i))));
    }
    EXPECT_GT(largest, 1e-5);  // both uses do count
  }
}

int dropouts(const Graph& graph) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                        [](const Node& node) { return node.op == "dropout"; }));
}

/// The one inside scaled_dot_product_attention is written inactive, and applied all the same.
TEST(Exports, DropoutIsAppliedWhereverPyTorchDoes) {
  for (const char* file : {"dropout.dynamo_train", "dropout.legacy_train"}) {
    SCOPED_TRACE(file);
    const Imported found = import(file);
    EXPECT_EQ(dropouts(found.graph), 4);
    EXPECT_EQ(found.notes("applied as PyTorch was called"), 1);
    std::set<int64_t> keys;
    for (const Node& node : found.graph.nodes()) {
      if (node.op == "dropout") keys.insert(node.attrs.i("key"));
    }
    EXPECT_EQ(keys.size(), 4u) << "two dropouts draw the same masks";
  }
}

/// Stochastic depth in two spellings is dropout; a variational autoencoder's noise (two numbers for
/// each normal one), a mask with probabilities of its own and uniform noise are drawn in
/// validation, too.
TEST(Exports, RandomNumbersAreDrawnAnewInEachStep) {
  for (const char* file : {"random.dynamo", "random.legacy"}) {
    SCOPED_TRACE(file);
    Graph graph = import(file).graph;
    EXPECT_EQ(recognise(graph).dropout, 2);
    EXPECT_EQ(dropouts(graph), 2);
    std::set<int64_t> keys;
    for (const Node& node : graph.nodes()) {
      if (node.op == "random_uniform" || node.op == "dropout") keys.insert(node.attrs.i("key"));
    }
    EXPECT_EQ(keys.size(), 6u) << "two draw the same numbers";
    attach_loss(graph, {});
    graph.outputs = {graph.loss};
    Graph plain = evaluation_form(graph);
    EXPECT_EQ(dropouts(plain), 0);
    for (const Graph* g : {&graph, &plain}) {
      auto loss = [&](int64_t step) {
        const NamedTensors feeds = {
            {"x", Tensor::from<float>({7, 12}, std::vector<float>(84, 0.5F), DType::f32)},
            {kRandomStep, Tensor::scalar_i64(step)}};
        return evaluate_graph(*g, feeds)[0].at(0);
      };
      EXPECT_EQ(loss(1), loss(1));
      EXPECT_NE(loss(1), loss(2));
    }
  }
}

TEST(Exports, DropoutGoesIntoAttention) {
  Graph graph = import("dropout.dynamo_train").graph;
  EXPECT_EQ(recognise(graph).attention, 2);
  EXPECT_EQ(dropouts(graph), 2);
  for (const Node& node : graph.nodes()) {
    if (node.op != "attention") continue;
    EXPECT_NEAR(node.attrs.f("dropout"), 0.1, 1e-6);
  }
}

/// A weight that lost its name in folding is frozen by the one it had.
TEST(Exports, FrozenByLostNames) {
  for (const char* file : {"dropout.legacy_eval", "encoder.dynamo_default"}) {
    SCOPED_TRACE(file);
    ImportOptions options;
    options.evaluate = run_reference;
    options.shared = ImportOptions::Shared::split;
    options.freeze = {"^(q|v)\\."};
    ImportReport report;
    OnnxFile(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx").import(options, &report);
    std::vector<std::string> frozen;
    for (const ImportReport::Parameter& p : report.parameters) {
      const bool lost = p.name.find("MatMul") != std::string::npos || p.name.rfind("val_", 0) == 0;
      if (lost && !p.trainable) frozen.push_back(p.other_names.at(0) + ": " + p.why);
    }
    EXPECT_EQ(frozen,
              (std::vector<std::string>{"q.weight: was 'q.weight', which --freeze matches",
                                        "v.weight: was 'v.weight', which --freeze matches"}));
  }
}

/// The legacy exporter leaves no trace of Dropout in evaluation mode but the names that folding
/// leaves.
TEST(Exports, LegacyEvaluationModeIsNoted) {
  const Imported found = import("dropout.legacy_eval");
  EXPECT_EQ(dropouts(found.graph), 0);
  EXPECT_EQ(found.notes("evaluation mode"), 1);
  EXPECT_EQ(found.notes("training=torch.onnx.TrainingMode.TRAINING"), 1);
}

}  // namespace
}  // namespace shardrun
