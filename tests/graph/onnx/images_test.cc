// PyTorch parity of image models: forward, every gradient, three steps and running statistics,
// alone and on meshes. The files come from tests/golden/make_images.py.
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/cut_run.h"

namespace shardrun {
namespace {

using test::GoldenModel, test::relative_norm, test::kGoldenSteps;

constexpr double kTolerance = 1e-4;
// On meshes, where sums run in another order. Fifty layers of batch statistics over four images
// turn a last bit of the loss into 3e-5 of the first layers' gradients; Adam's first steps, as long
// as the learning rate whatever the gradient, would make it a tenth of the next ones' at the
// record's rate. So meshes are held against the reference kernels at a smaller one.
constexpr double kSmallRate = 1e-4, kFloatTolerance = 3e-4;

GoldenModel load(const std::string& model, const std::string& exporter,
                 const ImportOptions& options = {}) {
  const auto loss = model == "wrn" ? std::optional(LossKind::cross_entropy) : std::nullopt;
  return test::load_golden(model, exporter, loss, options);
}

struct Case {
  const char* model;
  const char* exporter;
  bool promote = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }

GoldenModel load(const Case& c) {
  ImportOptions options;
  if (c.promote) options.mode = ImportOptions::Mode::train;
  return load(c.model, c.exporter, options);
}

class OnnxImages : public testing::TestWithParam<Case> {};

TEST_P(OnnxImages, ForwardLossAndGradients) {
  const GoldenModel model = load(GetParam());
  model.expect_first_pass(kTolerance);
  // Through the batch's statistics the gradient goes at once, not by way of the moments.
  Graph graph = model.forward;
  differentiate(graph, graph.loss, graph.with_role(Role::parameter));
  const auto& nodes = graph.nodes();
  auto count = [&](const char* op) {
    return std::count_if(nodes.begin(), nodes.end(), [&](const Node& n) { return n.op == op; });
  };
  EXPECT_EQ(count("batch_norm_grad"), count("batch_norm"));
  EXPECT_EQ(count("batch_moments"), count("batch_norm"));
}

TEST_P(OnnxImages, ThreeStepsAndRunningStatistics) {
  load(GetParam()).expect_three_steps(kTolerance);
}

/// One export of each model: the others make the same graph, as the tests above show.
class OnnxImagesOnMeshes : public testing::TestWithParam<Case> {};

TEST_P(OnnxImagesOnMeshes, ThreeSteps) {
  const GoldenModel model = load(GetParam());
  const Graph graph = test::golden_training_graph(model.forward);
  Interpreter reference(graph);
  std::vector<double> losses;
  for (int step = 1; step <= kGoldenSteps; ++step) {
    NamedTensors feeds = model.feeds;
    feeds[kLearningRate] = Tensor::from<float>({}, {static_cast<float>(kSmallRate)}, DType::f32);
    feeds[kStep] = Tensor::scalar_i64(step);
    losses.push_back(reference.step({feeds}, std::vector{graph.metrics.at("loss")})[0].at(0));
  }
  for (const char* text : {"data=3", "data=2,model=2"}) {
    const test::ShardedRun run = test::expect_losses_when_cut(graph, model.feeds, Mesh::parse(text),
                                                              kSmallRate, losses, kTolerance);
    for (const auto& [name, tensor] : run.persistent) {
      const bool statistic = model.recorded.count("stats/" + name) > 0;
      if (!statistic && graph.value(graph.find(name)).role != Role::parameter) continue;
      EXPECT_LE(relative_norm(tensor, reference.persistent(name)), kFloatTolerance)
          << text << ": " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxImages,
                         testing::Values(Case{"wrn", "dynamo"}, Case{"wrn", "legacy"},
                                         Case{"wrn", "dynamo_eval", true},
                                         Case{"wrn", "legacy_eval", true}, Case{"shapes", "dynamo"},
                                         Case{"shapes", "legacy"}),
                         [](const auto& info) {
                           return std::string(info.param.model) + "_" + info.param.exporter;
                         });
INSTANTIATE_TEST_SUITE_P(All, OnnxImagesOnMeshes,
                         testing::Values(Case{"wrn", "dynamo"}, Case{"shapes", "legacy"}),
                         [](const auto& info) { return std::string(info.param.model); });

/// Validation normalises by the running statistics, as an export in evaluation mode does, and moves
/// nothing.
TEST(BatchNorm, EvaluationIsTheInferenceForm) {
  const GoldenModel trained = load("wrn", "legacy"), inference = load("wrn", "legacy_eval");
  EXPECT_TRUE(inference.noted("batch normalisations were exported in evaluation mode"));
  EXPECT_TRUE(inference.forward.updates.empty());
  EXPECT_EQ(trained.forward.updates.size(), 2u * 52);
  const Graph evaluation = evaluation_form(trained.forward);
  EXPECT_TRUE(evaluation.updates.empty());
  const Tensor want = evaluate_graph(inference.forward, inference.feeds)[0];
  EXPECT_LE(relative_norm(evaluate_graph(evaluation, trained.feeds)[0], want), 1e-6);
  EXPECT_GE(relative_norm(evaluate_graph(trained.forward, trained.feeds)[0], want), 1e-2);
}

/// The newer exporter writes inference form alone; its metadata tells what the model was in.
TEST(BatchNorm, MetadataOrTheModePromotes) {
  const GoldenModel training = load("wrn", "dynamo"), stored = load("wrn", "dynamo_eval");
  EXPECT_EQ(training.report.promoted, 52);
  EXPECT_TRUE(training.noted("the export's metadata says that the model was in training mode"));
  EXPECT_EQ(stored.report.promoted, 0);
  EXPECT_EQ(stored.report.stored_statistics, 52);
  EXPECT_EQ(load({"wrn", "dynamo_eval", true}).report.promoted, 52);
}

/// ONNX averages the population's variance, PyTorch the unbiased one: of 16 values, 16 / 15 of it.
TEST(BatchNorm, OnnxsRunningVarianceOnRequest) {
  ImportOptions options;
  options.statistics = ImportOptions::Statistics::onnx;
  const GoldenModel onnx = load("wrn", "legacy", options), pytorch = load("wrn", "legacy");
  auto averaged = [](const GoldenModel& model, const char* name) {
    const ValueId next = model.forward.updates.at(model.forward.find(name));
    return std::vector{Interpreter(model.forward).persistent(name),
                       evaluate_graph(model.forward, model.feeds, std::vector{next})[0]};
  };
  const char* last = "layer4.2.bn3.running_var";  // over 4 images of 2 x 2
  const std::vector<Tensor> population = averaged(onnx, last), unbiased = averaged(pytorch, last);
  for (int64_t c = 0; c < population[0].count(); ++c) {
    const double old = 0.9 * population[0].at(c);
    EXPECT_NEAR(unbiased[1].at(c) - old, (population[1].at(c) - old) * 16 / 15, 1e-6) << c;
    EXPECT_GT(unbiased[1].at(c), population[1].at(c)) << c;
  }
  EXPECT_EQ(relative_norm(averaged(onnx, "bn1.running_mean")[1],
                          averaged(pytorch, "bn1.running_mean")[1]),
            0.0);
}

}  // namespace
}  // namespace shardrun
