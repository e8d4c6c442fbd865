// The models that models/gpt.h writes: onnxruntime's logits, both forms of their weights, their
// sizes.
#include "models/gpt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "graph/autodiff.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "kernels/reference/interpreter.h"
#include "models/onnx_writer.h"
#include "tests/graph/onnx/build.h"
#include "tests/models/same_weights.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;

GptOptions small() {
  GptOptions o;
  o.layers = 2;
  o.heads = 2;
  o.hidden = 16;
  o.vocab = 32;
  o.context = 8;
  o.seed = 11;
  return o;
}

/// Rotary positions, two query heads for one key head, a gated MLP, RMS norms, a head of its own.
GptOptions small_llama() {
  GptOptions o = small();
  o.norm = GptOptions::Norm::rms;
  o.mlp = GptOptions::Mlp::swiglu;
  o.positions = GptOptions::Positions::rotary;
  o.kv_heads = 1;
  o.mlp_width = 24;
  o.biases = o.tied = false;
  return o;
}

/// Heads wider than hidden / heads.
GptOptions small_gemma() {
  GptOptions o = small();
  o.norm = GptOptions::Norm::rms;
  o.mlp = GptOptions::Mlp::geglu;
  o.positions = GptOptions::Positions::rotary;
  o.head_width = 12;
  o.biases = false;
  return o;
}

/// Of 16 choices of a sample each of four experts takes 3, so some find no place.
GptOptions small_mixture() {
  GptOptions o = small();
  o.experts = 4;
  o.capacity = 0.75;
  return o;
}

struct Case {
  const char* name;
  GptOptions options;
};
std::vector<Case> cases() {
  return {{"gpt", small()},
          {"llama", small_llama()},
          {"gemma", small_gemma()},
          {"experts", small_mixture()}};
}

Graph import(const std::string& path, ImportReport* report = nullptr) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.batch = 2;
  return OnnxFile(path).import(options, report);
}

Tensor tokens() {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 16; ++i) values.push_back((7 * i + 3) % 32);
  return Tensor::from(Shape{2, 8}, values, DType::i64);
}

std::vector<double> read_numbers(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<double> out;
  for (double value; in >> value;) out.push_back(value);
  return out;
}

void expect_close(const Tensor& got, const std::vector<double>& want) {
  ASSERT_EQ(got.count(), static_cast<int64_t>(want.size()));
  for (int64_t i = 0; i < got.count(); ++i) {
    EXPECT_NEAR(got.at(i), want[static_cast<size_t>(i)],
                1e-5 + 1e-4 * std::abs(want[static_cast<size_t>(i)]))
        << i;
  }
}

class Gpt : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::string path = (folder / "gpt.onnx").string();
};

TEST_F(Gpt, LogitsAreThoseOfOnnxruntime) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<double> want =
        read_numbers(str(SHARDRUN_SOURCE_DIR "/tests/models/", c.name, "_logits.txt"));
    write_gpt(c.options, path);
    expect_close(evaluate_graph(import(path), {{"tokens", tokens()}})[0], want);
    Graph fused = import(path);
    recognise(fused);
    const auto attention = std::count_if(fused.nodes().begin(), fused.nodes().end(),
                                         [](const Node& n) { return n.op == "attention"; });
    EXPECT_EQ(attention, 2);
    expect_close(evaluate_graph(fused, {{"tokens", tokens()}})[0], want);
  }
}

TEST_F(Gpt, PassesTheCheckerAndRunsElsewhere) {
  const char* python = std::getenv("SHARDRUN_PEER_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SHARDRUN_PEER_PYTHON names no Python with onnx and onnxruntime";
  for (const Case& c : cases()) {
    for (const bool weights : {true, false}) {
      SCOPED_TRACE(str(c.name, weights ? " with weights" : " without weights"));
      GptOptions o = c.options;
      o.weights = weights;
      write_gpt(o, path);
      const std::string out = (folder / "logits.txt").string();
      const std::string command =
          str(python, " " SHARDRUN_SOURCE_DIR "/tests/models/gpt_logits.py ", path, " > ", out);
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
      const std::vector<double> want = read_numbers(out);
      ASSERT_EQ(want.size(), 2u * 8 * 32);
      if (weights) expect_close(evaluate_graph(import(path), {{"tokens", tokens()}})[0], want);
    }
  }
}

// No token depends on a later one, whatever the capacity. With one expert a token, too, the router
// learns: its weight is a probability then.
TEST_F(Gpt, ATokenOfAMixtureDependsOnThoseBefore) {
  for (const double capacity : {0.5, 4.0}) {
    for (const int64_t top_k : {1, 2}) {
      GptOptions o = small_mixture();
      o.capacity = capacity, o.top_k = top_k;
      write_gpt(o, path);
      const Graph graph = import(path);
      const Tensor whole = tokens(), logits = evaluate_graph(graph, {{"tokens", whole}})[0];
      Tensor other = tokens();
      for (const int64_t row : {0, 1}) other.as<int64_t>()[row * 8 + 5] = 31;
      const Tensor changed = evaluate_graph(graph, {{"tokens", other}})[0];
      int differ = 0;
      for (int64_t i = 0; i < logits.count(); ++i) {
        if (i / 32 % 8 < 5) {
          EXPECT_EQ(logits.at(i), changed.at(i)) << i;
        } else {
          differ += logits.at(i) != changed.at(i);
        }
      }
      EXPECT_GT(differ, 0);
      // Of the gradient of all weights that of the router is not zero.
      Graph step = graph;
      const std::vector<ValueId> parameters = step.with_role(Role::parameter);
      const ValueId loss =
          step.add("reduce_sum", {step.add("mul", {step.outputs[0], step.outputs[0]})},
                   {{"axes", std::vector<int64_t>{0, 1, 2}}, {"keepdims", int64_t{0}}});
      const std::vector<ValueId> gradients = differentiate(step, loss, parameters);
      const std::vector<Tensor> values = evaluate_graph(step, {{"tokens", whole}}, gradients);
      for (size_t p = 0; p < parameters.size(); ++p) {
        if (step.value(parameters[p]).name.find("router") == std::string::npos) continue;
        double largest = 0;
        for (int64_t i = 0; i < values[p].count(); ++i)
          largest = std::max(largest, std::abs(values[p].at(i)));
        EXPECT_GT(largest, 1e-6) << step.value(parameters[p]).name << ", top " << top_k;
      }
    }
  }
}

// With dropout, attention is written in its pieces, and key heads are repeated by hand.
TEST_F(Gpt, AttentionInPiecesIsTheOperator) {
  GptOptions o = small_llama();
  o.dropout = 1e-12;  // drops nothing
  write_gpt(o, path);
  const NamedTensors feeds = {{"tokens", tokens()}, {kRandomStep, Tensor::scalar_i64(0)}};
  expect_close(evaluate_graph(import(path), feeds)[0],
               read_numbers(SHARDRUN_SOURCE_DIR "/tests/models/llama_logits.txt"));
}

/// What is trained is what was written as a weight: no table of angles, and no number.
TEST_F(Gpt, WeightsAloneAreTrained) {
  for (const Case& c : cases()) {
    const int64_t written = write_gpt(c.options, path);
    ImportReport report;
    import(path, &report);
    int64_t trained = 0;
    for (const ImportReport::Parameter& parameter : report.parameters)
      trained += parameter.trainable ? element_count(parameter.type.shape) : 0;
    EXPECT_EQ(trained, written) << c.name;
  }
}

TEST_F(Gpt, DescribedWeightsAreTheStoredOnes) {
  write_gpt(small(), path);
  const std::string described = (folder / "described.onnx").string();
  GptOptions o = small();
  o.weights = false;
  EXPECT_EQ(write_gpt(o, described), write_gpt(small(), path));
  ImportReport a, b;
  const Graph stored = import(path, &a), made = import(described, &b);
  test::expect_same_weights(stored, a, made, b, o.seed);
  EXPECT_LT(std::filesystem::file_size(described), std::filesystem::file_size(path));
}

TEST_F(Gpt, ExternalWeightsAreTheInlineOnes) {
  OnnxWriter::Options inline_options{.weights = true, .seed = 3};
  OnnxWriter::Options external = inline_options;
  external.external_above = 0;
  std::vector<Tensor> results;
  for (const auto& options : {inline_options, external}) {
    OnnxWriter w("mlp", options);
    w.input("tokens", 1, {"batch", "5"});
    const std::string h = w.node("MatMul", {"tokens", w.normal("w1", {5, 3}, 1)});
    w.node("Add", {h, w.filled("b1", {3}, 0.5)}, {}, "y");
    w.output("y", 1, {"batch", "3"});
    w.write(path);
    const Tensor x =
        Tensor::from(Shape{2, 5}, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, DType::f32);
    results.push_back(evaluate_graph(import(path), {{"tokens", x}})[0]);
  }
  EXPECT_TRUE(std::filesystem::exists(path + ".data"));
  for (int64_t i = 0; i < results[0].count(); ++i) EXPECT_EQ(results[0].at(i), results[1].at(i));
}

TEST_F(Gpt, PresetsHaveTheirNamesSizes) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"gpt2-124m", 124439808},   {"gpt2-350m", 354823168}, {"gpt2-774m", 774030080},
      {"gpt2-1558m", 1557611200}, {"llama-8b", 8030261248}, {"t7b", 8538074112},
      {"t2b", 2506434560},        {"itx", 1185189888}};
  for (const auto& [name, parameters] : sizes) {
    GptOptions o = gpt_preset(name);
    o.weights = false;
    EXPECT_EQ(write_gpt(o, path), parameters) << name;
    EXPECT_LT(std::filesystem::file_size(path), 1000000u) << name;
  }
  EXPECT_THROW(gpt_preset("gpt5"), Error);
  EXPECT_THROW(write_gpt(small(), (folder / "no/such/folder.onnx").string()), Error);
}

/// Each layer reads the mask of 1024 x 1024, which counts toward what an import may compute.
TEST_F(Gpt, ManyLayersShareALargeMask) {
  GptOptions o = small();
  o.layers = 256;
  o.context = 1024;
  o.weights = false;
  write_gpt(o, path);
  EXPECT_EQ(import(path).trainable.size(), 256u * 12 + 4);
}

TEST_F(Gpt, SizesThatDoNotFitAreRefused) {
  const auto refused = [&](auto change) {
    GptOptions o = small();
    change(o);
    EXPECT_THROW(write_gpt(o, path), Error);
  };
  refused([](GptOptions& o) { o.heads = 3; });
  refused([](GptOptions& o) { o.heads = 4, o.kv_heads = 3; });
  refused([](GptOptions& o) { o.positions = GptOptions::Positions::rotary, o.head_width = 7; });
  refused([](GptOptions& o) { o.mlp_width = 0; });
  refused([](GptOptions& o) { o.experts = 0; });
  refused([](GptOptions& o) { o.experts = 4, o.top_k = 5; });
  refused([](GptOptions& o) { o.experts = 4, o.top_k = 0; });
  refused([](GptOptions& o) { o.experts = 4, o.capacity = 0; });
}

TEST_F(Gpt, DropoutIsActiveInTraining) {
  GptOptions o = small();
  o.dropout = 0.25;
  write_gpt(o, path);
  const Graph graph = import(path);
  NamedTensors feeds = {{"tokens", tokens()}, {kRandomStep, Tensor::scalar_i64(0)}};
  const Tensor first = evaluate_graph(graph, feeds)[0], again = evaluate_graph(graph, feeds)[0];
  feeds[kRandomStep] = Tensor::scalar_i64(1);
  const Tensor other = evaluate_graph(graph, feeds)[0];
  int differ = 0;
  for (int64_t i = 0; i < first.count(); ++i) {
    EXPECT_EQ(first.at(i), again.at(i));
    differ += first.at(i) != other.at(i);
  }
  EXPECT_GT(differ, first.count() / 2);
}

}  // namespace
}  // namespace shardrun
