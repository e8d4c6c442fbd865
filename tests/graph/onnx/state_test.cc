// What forward() changes: averages, counts, spectral norm's vectors, a momentum encoder's weights
// and the rest of tests/golden/make_state.py become state that moves as PyTorch moves it.
#include <gtest/gtest.h>

#include <regex>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/imported.h"
#include "tests/support/golden_model.h"

namespace shardrun {
namespace {

using test::Imported;

constexpr double kTolerance = 2e-5;
constexpr int64_t kBatch = 4;

struct Case {
  const char* model;
  const char* exporter;
};
std::string name_of(const Case& c) { return std::string(c.model) + "." + c.exporter; }
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

Imported import(const std::string& file, ImportOptions options = {}) {
  options.evaluate = run_reference;
  static const std::regex fixed("recurrent|samples|legacy");
  if (!std::regex_search(file, fixed)) options.batch = kBatch;
  Imported out;
  out.graph =
      OnnxFile(std::string(SHARDRUN_GOLDEN) + "/" + file + ".onnx").import(options, &out.report);
  return out;
}

/// x and y of four of the eight samples.
NamedTensors feeds_of(const NamedTensors& recorded, int64_t first) {
  NamedTensors out;
  for (const char* name : {"x", "y"}) {
    const Tensor& all = recorded.at(name);
    Shape shape = all.shape();
    shape[0] = kBatch;
    Tensor part({DType::f32, shape});
    std::copy_n(all.as<float>() + first * part.count() / kBatch, part.count(), part.as<float>());
    out[name] = part;
  }
  out[kLearningRate] = Tensor::from<float>({}, {0.05F}, DType::f32);
  return out;
}

void begin_with(Graph& graph, ValueId id, const Interpreter& from) {
  Source& source = graph.sources[id] = {};
  source.kind = Source::Kind::data;
  source.data = from.persistent(graph.value(id).name);
}

/// The older exporter writes what its tracing, a first forward(), has made of the tensors.
void begin_as_dynamo(const std::string& model, Graph& graph) {
  const Graph from = import(model + ".dynamo").graph;
  const Interpreter start(from);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.values()[v];
    if (value.role == Role::state && from.find(value.name) != kNoValue)
      begin_with(graph, static_cast<ValueId>(v), start);
  }
}

class State : public testing::TestWithParam<std::tuple<Case, int>> {};

/// Six steps by the reference kernels, each with so many micro-batches, and a validation behind it.
TEST_P(State, MovesAsPyTorchMovesIt) {
  const auto& [which, accumulate] = GetParam();
  const NamedTensors recorded = test::read_recorded(which.model);
  Graph training = import(name_of(which)).graph;
  training.metrics = {{"loss", training.loss}};
  training.outputs.clear();
  remove_dead_nodes(training);
  Graph evaluation = evaluation_form(training);
  remove_dead_nodes(evaluation);
  check_graph(evaluation);
  OptimizerOptions options;
  options.kind = OptimizerKind::sgd;
  options.accumulate = accumulate;
  attach_optimizer(training, options);
  check_graph(training);

  if (std::string(which.exporter) == "legacy") begin_as_dynamo(which.model, training);
  Interpreter train(training);
  NamedTensors feeds = feeds_of(recorded, 0);
  const NamedTensors held_out = feeds_of(recorded, kBatch);
  const std::string by = "/" + std::to_string(accumulate);
  for (int64_t step = 1; step <= 6; ++step) {
    SCOPED_TRACE(step);
    feeds[kStep] = Tensor::scalar_i64(step);
    const std::vector<NamedTensors> micro(static_cast<size_t>(accumulate), feeds);
    const double loss = train.step(micro, std::vector{training.metrics.at("loss")})[0].at(0);
    const double want = recorded.at("losses" + by).at(step - 1);
    EXPECT_NEAR(loss, want, kTolerance * std::abs(want));
    for (size_t v = 0; v < evaluation.values().size(); ++v) {
      const Value& value = evaluation.values()[v];
      if (value.role == Role::parameter || value.role == Role::state)
        begin_with(evaluation, static_cast<ValueId>(v), train);
    }
    const double checked =
        Interpreter(evaluation).step({held_out}, std::vector{evaluation.loss})[0].at(0);
    const double validated = recorded.at("validated" + by).at(step - 1);
    EXPECT_NEAR(checked, validated, kTolerance * std::abs(validated));
  }
  if (accumulate > 1) return;
  int compared = 0;
  for (const auto& [name, want] : recorded) {
    if (name.rfind("after/", 0) != 0) continue;
    const std::string tensor = name.substr(6);
    if (training.find(tensor) == kNoValue) continue;  // a mask that is a constant, a count
    const Tensor& got = train.persistent(tensor);
    EXPECT_LE(test::relative_norm(got, want), kTolerance) << name;
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Models, State,
    testing::Combine(
        testing::Values(Case{"state_averages", "dynamo"}, Case{"state_spectral", "dynamo"},
                        Case{"state_momentum", "dynamo"}, Case{"state_codebook", "dynamo"},
                        Case{"state_projected", "dynamo"}, Case{"state_quantile", "dynamo"},
                        Case{"state_instances", "dynamo"}, Case{"state_instance", "dynamo"},
                        Case{"state_recurrent", "dynamo"}, Case{"state_pair", "dynamo"},
                        Case{"state_twice", "dynamo"}, Case{"state_twice", "legacy"},
                        Case{"state_averages", "legacy"}, Case{"state_momentum", "legacy"},
                        Case{"state_instance", "legacy"}, Case{"state_queue", "dynamo"},
                        Case{"state_samples", "dynamo"}, Case{"state_filled", "dynamo"}),
        testing::Values(1, 2)),
    [](const auto& info) {
      std::string name =
          name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

TEST(ChangedTensors, AreListedAndNoted) {
  const Imported averages = import("state_averages.dynamo");
  EXPECT_EQ(averages.notes("forward() changes 'count', 'ema'"), 1);
  ASSERT_NE(averages.find("count"), nullptr);
  EXPECT_EQ(averages.find("count")->why, "forward() changes it");
  const Imported momentum = import("state_momentum.dynamo");
  EXPECT_EQ(momentum.notes("'k.0.bias', 'k.0.weight', 'k.2.bias', 'k.2.weight'"), 1);
  ASSERT_NE(momentum.find("k.0.weight"), nullptr);
  EXPECT_FALSE(momentum.find("k.0.weight")->trainable);
  EXPECT_EQ(import("state_instances.dynamo").notes("leaves out what instance normalisations keep"),
            1);
}

TEST(ChangedTensors, OneThatForwardNormalisesLearnsToo) {
  const Imported projected = import("state_projected.dynamo");
  const ValueId w = projected.graph.find("w");
  ASSERT_NE(w, kNoValue);
  EXPECT_TRUE(projected.graph.trainable.at(w));
  EXPECT_EQ(projected.graph.updates.count(w), 1U);
}

/// --train on a momentum encoder: it is moved, and learns from there.
TEST(ChangedTensors, AreTrainedWhereAsked) {
  ImportOptions options;
  options.train = {"^k\\.0\\.weight$"};
  const Imported asked = import("state_momentum.dynamo", options);
  const ValueId weight = asked.graph.find("k.0.weight");
  EXPECT_EQ(asked.graph.value(weight).role, Role::parameter);
  EXPECT_TRUE(asked.graph.trainable.at(weight));
  EXPECT_EQ(asked.graph.value(asked.graph.find("k.0.bias")).role, Role::state);
}

/// Its optimiser computes 0.8 * ema ahead: what is left cannot be moved.
TEST(ChangedTensors, FoldedOnesAreNoted) {
  ImportOptions options;
  options.shared = ImportOptions::Shared::keep;
  const Imported folded = import("state_averages.dynamo_default", options);
  EXPECT_EQ(folded.notes("exporter's optimiser"), 1);
  EXPECT_EQ(folded.notes("optimize=False"), 1);
  EXPECT_EQ(folded.graph.find("ema"), kNoValue);
}

// ---- the older exporter tells nothing: what is read for a moving average or a count alone

TEST(MovingAverages, OfTheOlderExporterAreState) {
  const Imported averages = import("state_averages.legacy");
  EXPECT_EQ(averages.notes("'count', 'ema' are read for nothing but a moving average or a count"),
            1);
  const ValueId ema = averages.graph.find("ema");
  ASSERT_NE(ema, kNoValue);
  EXPECT_EQ(averages.graph.value(ema).role, Role::state);
  EXPECT_EQ(averages.graph.updates.count(ema), 1U);
  EXPECT_EQ(import("state_momentum.legacy").graph.with_role(Role::state).size(), 4U);
  ImportOptions options;
  options.train = {"ema"};
  const Graph trained = import("state_averages.legacy", options).graph;
  EXPECT_EQ(trained.value(trained.find("ema")).role, Role::parameter);
  EXPECT_EQ(trained.updates.count(trained.find("ema")), 0U);
}

// ---- the signature's two forms

TEST(ExportSignature, ReadsALineForEach) {
  const auto signature = importer::read_signature(
      "\n# inputs\np_w: PARAMETER target='w'\nb_m: BUFFER target='bn.m' persistent=True\n"
      "c_lifted: CONSTANT_TENSOR target='lifted'\nx: USER_INPUT\n\n# outputs\n"
      "add: BUFFER_MUTATION target='bn.m'\nmul_1: PARAMETER_MUTATION target='w'\ny: USER_OUTPUT\n");
  EXPECT_EQ(signature.kinds,
            (std::map<std::string, std::string>{
                {"w", "PARAMETER"}, {"bn.m", "BUFFER"}, {"lifted", "CONSTANT_TENSOR"}}));
  EXPECT_EQ(signature.placeholders.at("b_m"), "bn.m");
  ASSERT_EQ(signature.mutations.size(), 2U);
  EXPECT_EQ(signature.mutations[0].tensor, "bn.m");
  EXPECT_EQ(signature.mutations[0].value, "add");
  EXPECT_EQ(signature.mutations[1].tensor, "w");
  EXPECT_EQ(signature.mutations[1].value, "mul_1");
}

TEST(ExportSignature, ReadsSpecs) {
  const auto signature = importer::read_signature(
      "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.BUFFER: 3>, "
      "arg=TensorArgument(name='b_m'), target='m', persistent=True), "
      "InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), target=None)], "
      "output_specs=[OutputSpec(kind=<OutputKind.BUFFER_MUTATION: 3>, "
      "arg=TensorArgument(name='add'), target='m')])");
  EXPECT_EQ(signature.kinds.at("m"), "BUFFER");
  EXPECT_EQ(signature.placeholders.at("b_m"), "m");
  ASSERT_EQ(signature.mutations.size(), 1U);
  EXPECT_EQ(signature.mutations[0].value, "add");
}

}  // namespace
}  // namespace shardrun
