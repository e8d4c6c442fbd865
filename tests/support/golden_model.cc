// Reading of make_golden.py's record, and the comparisons that every such model has to pass.
#include "tests/support/golden_model.h"

#include <cmath>
#include <cstring>

#include "exec/data/data_files.h"
#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"

namespace shardrun::test {
namespace {

std::string golden(const std::string& file) { return std::string(SHARDRUN_GOLDEN) + "/" + file; }

}  // namespace

NamedTensors read_recorded(const std::string& model) {
  NamedTensors out;
  const NpzArchive recorded(golden(model + ".npz"));
  for (const std::string& name : recorded.names()) {
    const StoredArray& array = *recorded.find(name);
    const DType dtype = array.format == "<f4"   ? DType::f32
                        : array.format == "|b1" ? DType::boolean
                                                : DType::i64;
    Tensor tensor({dtype, array.shape});
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
  return std::sqrt(difference / std::max(norm, 1e-30));
}

bool GoldenModel::noted(const std::string& text) const {
  return std::any_of(report.notes.begin(), report.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

void GoldenModel::expect_first_pass(double tolerance) const {
  Graph graph = forward;
  const std::vector<ValueId> parameters = graph.with_role(Role::parameter);
  std::vector<ValueId> wanted = differentiate(graph, graph.loss, parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    ASSERT_NE(wanted[i], kNoValue) << graph.value(parameters[i]).name;
  wanted.push_back(graph.outputs[0]);
  wanted.push_back(graph.loss);
  const std::vector<Tensor> results = evaluate_graph(graph, feeds, wanted);
  EXPECT_LE(relative_norm(results[parameters.size()], recorded.at("output")), tolerance);
  EXPECT_NEAR(results.back().at(0), loss(0), tolerance * loss(0));
  NamedTensors gradients;
  for (size_t i = 0; i < parameters.size(); ++i)
    gradients[graph.value(parameters[i]).name] = results[i];
  compare("grad/", tolerance, [&](const std::string& name) { return gradients.at(name); });
}

void GoldenModel::expect_three_steps(double tolerance) const {
  const NamedTensors after =
      expect_golden_losses(golden_training_graph(forward), feeds, recorded.at("losses"), tolerance);
  const auto of = [&](const std::string& name) { return after.at(name); };
  compare("after/", tolerance, of);
  if (!forward.updates.empty()) compare("stats/", tolerance, of);
}

std::vector<double> GoldenModel::losses() const {
  std::vector<double> out;
  for (int step = 0; step < kGoldenSteps; ++step) out.push_back(loss(step));
  return out;
}

GoldenModel load_golden(const std::string& model, const std::string& exporter,
                        std::optional<LossKind> loss, ImportOptions options) {
  GoldenModel out;
  out.recorded = read_recorded(model);
  options.evaluate = run_reference;
  options.contents = [&](const std::string& input,
                         const std::vector<std::string>&) -> std::optional<Tensor> {
    return out.recorded.at("in/" + input);
  };
  out.forward = OnnxFile(golden(model + "." + exporter + ".onnx")).import(options, &out.report);
  out.fused = recognise(out.forward);
  attach_loss(out.forward, loss);
  check_graph(out.forward);
  for (ValueId id : out.forward.with_role(Role::batch)) {
    const std::string& name = out.forward.value(id).name;
    out.feeds[name] = out.recorded.at("in/" + name);
  }
  return out;
}

Graph golden_training_graph(const Graph& forward, double weight_decay) {
  Graph graph = forward;
  graph.metrics = {{"loss", graph.loss}};
  graph.outputs.clear();
  remove_dead_nodes(graph);
  OptimizerOptions options;
  options.beta1 = 0.9;
  options.beta2 = 0.99;
  options.eps = 1e-5;  // make_golden.py says why
  options.weight_decay = weight_decay;
  attach_optimizer(graph, options);
  merge_equal_nodes(graph);
  check_graph(graph);
  return graph;
}

NamedTensors expect_golden_losses(const Graph& training, const NamedTensors& feeds,
                                  const Tensor& losses, double tolerance) {
  Interpreter interpreter(training);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    NamedTensors all = feeds;
    all[kLearningRate] = Tensor::from<float>({}, {static_cast<float>(kGoldenRate)}, DType::f32);
    all[kStep] = Tensor::scalar_i64(step);
    const double got = interpreter.step({all}, std::vector{training.metrics.at("loss")})[0].at(0);
    const double want = losses.at(step - 1);
    EXPECT_NEAR(got, want, tolerance * want) << "step " << step;
  }
  NamedTensors after;
  for (Role role : {Role::parameter, Role::state}) {
    for (ValueId id : training.with_role(role)) {
      const std::string& name = training.value(id).name;
      after[name] = interpreter.persistent(name);
    }
  }
  return after;
}

}  // namespace shardrun::test
