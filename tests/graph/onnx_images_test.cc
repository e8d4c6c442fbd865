// PyTorch parity of image models: forward, every gradient, three steps and running statistics,
// alone and on meshes. The files come from tests/golden/make_images.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "exec/data_files.h"
#include "graph/autodiff.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/fuse.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "planner/planner.h"
#include "tests/support/sharded_run.h"

namespace shardrun {
namespace {

constexpr double kTolerance = 1e-4, kLearningRateUsed = 1e-2;
// What three steps in float32 throughout make of rounding: PyTorch's own are 1.2e-4 from its
// float64's.
constexpr double kFloatTolerance = 3e-4;
constexpr int kSteps = 3;

std::string golden(const std::string& file) { return std::string(SHARDRUN_GOLDEN) + "/" + file; }

/// in/…, output, losses, grad/…, after/…, stats/… of make_golden.py's record.
NamedTensors read_recorded(const std::string& model) {
  NamedTensors out;
  for (const auto& [name, array] : open_npz(golden(model + ".npz"))) {
    Tensor tensor({array.format == "<f4" ? DType::f32 : DType::i64, array.shape});
    std::memcpy(tensor.data(), array.data, static_cast<size_t>(byte_size(tensor.type())));
    out[name] = tensor;
  }
  return out;
}

double relative_norm(const Tensor& got, const Tensor& want) {
  if (got.type() != want.type()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < want.count(); ++i) {
    difference += std::pow(got.at(i) - want.at(i), 2);
    norm += std::pow(want.at(i), 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-20));
}

struct Loaded {
  NamedTensors recorded, feeds;
  Graph forward;
  ImportReport report;

  double loss(int step) const { return recorded.at("losses").at(step); }
  bool noted(const std::string& text) const {
    return std::any_of(report.notes.begin(), report.notes.end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  }
  /// Compares every recorded tensor of this kind with what `of` gives for its name.
  template <class Of>
  void compare(const std::string& kind, double tolerance, Of of) const {
    int compared = 0;
    for (const auto& [name, want] : recorded) {
      if (name.rfind(kind, 0) != 0) continue;
      EXPECT_LE(relative_norm(of(name.substr(kind.size())), want), tolerance) << name;
      ++compared;
    }
    EXPECT_GT(compared, 0) << kind;
  }
};

Loaded load(const std::string& model, const std::string& exporter, ImportOptions options = {}) {
  Loaded out;
  out.recorded = read_recorded(model);
  options.evaluate = run_reference;
  out.forward = import_onnx(golden(model + "." + exporter + ".onnx"), options, &out.report);
  fuse(out.forward);
  attach_loss(out.forward, model == "wrn" ? "cross-entropy" : "");
  check_graph(out.forward);
  for (ValueId id : out.forward.with_role(Role::batch)) {
    const std::string& name = out.forward.value(id).name;
    out.feeds[name] = out.recorded.at("in/" + name);
  }
  return out;
}

Graph training_graph(const Graph& forward) {
  Graph graph = forward;
  graph.metrics = {{"loss", graph.loss}};
  graph.outputs.clear();
  remove_dead_nodes(graph);
  OptimizerOptions options;  // as make_golden.py's
  options.beta1 = 0.9;
  options.beta2 = 0.99;
  options.eps = 1e-5;
  options.weight_decay = 0.1;
  attach_optimizer(graph, options);
  merge_equal_nodes(graph);
  check_graph(graph);
  return graph;
}

struct Case {
  const char* model;
  const char* exporter;
  bool promote = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }

Loaded load(const Case& c) {
  ImportOptions options;
  if (c.promote) options.mode = ImportOptions::Mode::train;
  return load(c.model, c.exporter, options);
}

class OnnxImages : public ::testing::TestWithParam<Case> {};

TEST_P(OnnxImages, ForwardLossAndGradients) {
  const Loaded model = load(GetParam());
  Graph graph = model.forward;
  std::vector<ValueId> parameters = graph.with_role(Role::parameter);
  std::vector<ValueId> wanted = differentiate(graph, graph.loss, parameters);
  // Through the batch's statistics the gradient goes at once, not by way of the moments.
  const auto& nodes = graph.nodes();
  auto count = [&](const char* op) {
    return std::count_if(nodes.begin(), nodes.end(), [&](const Node& n) { return n.op == op; });
  };
  EXPECT_EQ(count("batch_norm_grad"), count("batch_norm"));
  EXPECT_EQ(count("batch_moments"), count("batch_norm"));
  for (size_t i = 0; i < parameters.size(); ++i)
    ASSERT_NE(wanted[i], kNoValue) << graph.value(parameters[i]).name;
  wanted.push_back(graph.outputs[0]);
  wanted.push_back(graph.loss);
  const std::vector<Tensor> results = evaluate_graph(graph, model.feeds, wanted);
  EXPECT_LE(relative_norm(results[parameters.size()], model.recorded.at("output")), kTolerance);
  EXPECT_NEAR(results.back().at(0), model.loss(0), kTolerance * model.loss(0));
  NamedTensors gradients;
  for (size_t i = 0; i < parameters.size(); ++i)
    gradients[graph.value(parameters[i]).name] = results[i];
  model.compare("grad/", kTolerance, [&](const std::string& name) { return gradients.at(name); });
}

TEST_P(OnnxImages, ThreeStepsAndRunningStatistics) {
  const Loaded model = load(GetParam());
  const Graph graph = training_graph(model.forward);
  Interpreter interpreter(graph);
  for (int step = 1; step <= kSteps; ++step) {
    NamedTensors feeds = model.feeds;
    feeds[kLearningRate] =
        Tensor::from<float>({}, {static_cast<float>(kLearningRateUsed)}, DType::f32);
    feeds[kStep] = Tensor::scalar_i64(step);
    const double loss = interpreter.step({feeds}, std::vector{graph.metrics.at("loss")})[0].at(0);
    EXPECT_NEAR(loss, model.loss(step - 1), kTolerance * model.loss(step - 1)) << "step " << step;
  }
  auto after = [&](const std::string& name) { return interpreter.persistent(name); };
  model.compare("after/", kTolerance, after);
  model.compare("stats/", kTolerance, after);
}

/// One export of each model: the others make the same graph, as the tests above show.
class OnnxImagesOnMeshes : public ::testing::TestWithParam<Case> {};

TEST_P(OnnxImagesOnMeshes, ThreeSteps) {
  const Loaded model = load(GetParam());
  const Graph graph = training_graph(model.forward);
  RuleCache rules;
  // Images over the first axis (4 over 3 is 2, 2, 0); weights' output channels over the last.
  for (const char* text : {"data=3", "data=2,model=2"}) {
    const Mesh mesh = Mesh::parse(text);
    PlanOptions options;
    options.planner = "ilp";
    options.solve_seconds = 3;
    for (const Value& value : graph.values()) {
      const bool batch = value.role == Role::batch;
      if ((!batch && value.role != Role::parameter) || value.type.shape.empty()) continue;
      const int axis = batch ? 0 : mesh.axis_count() - 1;
      if (value.type.shape[0] < (batch ? 1 : 3)) continue;
      Sharding sharding = Sharding::replicated(value.type.shape.size());
      sharding.dims.front() = {axis};
      options.pinned[value.name] = sharding;
    }
    const Plan plan = plan_shardings(graph, mesh, host_cluster(), options, rules);
    const testing::ShardedRun run = testing::run_sharded(
        graph, plan, std::vector<NamedTensors>(kSteps, model.feeds), kLearningRateUsed);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(run.metrics[static_cast<size_t>(step)].at("loss"), model.loss(step),
                  kTolerance * model.loss(step))
          << text << ", step " << step + 1;
    }
    auto after = [&](const std::string& name) { return run.persistent.at(name); };
    model.compare("after/", kFloatTolerance, after);
    model.compare("stats/", kFloatTolerance, after);
    EXPECT_EQ(run.allocated_bytes, run.predicted_bytes) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxImages,
                         ::testing::Values(Case{"wrn", "dynamo"}, Case{"wrn", "legacy"},
                                           Case{"wrn", "dynamo_eval", true},
                                           Case{"wrn", "legacy_eval", true},
                                           Case{"shapes", "dynamo"}, Case{"shapes", "legacy"}),
                         [](const auto& info) {
                           return std::string(info.param.model) + "_" + info.param.exporter;
                         });
INSTANTIATE_TEST_SUITE_P(All, OnnxImagesOnMeshes,
                         ::testing::Values(Case{"wrn", "dynamo"}, Case{"shapes", "legacy"}),
                         [](const auto& info) { return std::string(info.param.model); });

/// Validation normalises by the running statistics, as an export in evaluation mode does, and moves
/// nothing.
TEST(BatchNorm, EvaluationIsTheInferenceForm) {
  const Loaded trained = load("wrn", "legacy"), inference = load("wrn", "legacy_eval");
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
  const Loaded training = load("wrn", "dynamo"), stored = load("wrn", "dynamo_eval");
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
  const Loaded onnx = load("wrn", "legacy", options), pytorch = load("wrn", "legacy");
  auto averaged = [](const Loaded& model, const char* name) {
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
