// The GAT that models/gat.h writes: onnxruntime's logits from both forms of a graph, both forms of
// its weights, its sizes, its recipe.
#include "models/gat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"
#include "tests/models/same_weights.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;

constexpr int64_t kNodes = 7, kFeatures = 6, kClasses = 5;

GatOptions small(bool dense) {
  GatOptions o;
  o.features = kFeatures;
  o.hidden = 3;
  o.heads = 4;
  o.classes = kClasses;
  o.output_heads = 2;
  o.dense = dense;
  o.seed = 11;
  return o;
}

/// The graph that gat_logits.py describes: (source, target).
std::set<std::pair<int64_t, int64_t>> edges() {
  std::set<std::pair<int64_t, int64_t>> out;
  for (int64_t i = 0; i < kNodes; ++i) {
    for (int64_t target : {i, (i + 1) % kNodes, (3 * i + 1) % kNodes}) {
      if (target != 6 && !(i == 4 && target == 4)) out.insert({i, target});
    }
  }
  return out;
}

NamedTensors feeds(bool dense) {
  std::vector<float> x;
  for (int64_t i = 0; i < kNodes * kFeatures; ++i)
    x.push_back(static_cast<float>((5 * i + 2) % 11 - 5) / 5);
  NamedTensors out = {{"features", Tensor::from(Shape{kNodes, kFeatures}, x, DType::f32)}};
  if (dense) {
    std::vector<uint8_t> adjacency(kNodes * kNodes, 0);
    for (const auto& [source, target] : edges())
      adjacency[static_cast<size_t>(target * kNodes + source)] = 1;
    out["adjacency"] = Tensor::from(Shape{kNodes, kNodes}, adjacency, DType::boolean);
    return out;
  }
  std::vector<int64_t> list;
  for (const auto& [source, target] : edges()) list.push_back(source);
  for (const auto& [source, target] : edges()) list.push_back(target);
  out["edge_index"] =
      Tensor::from(Shape{2, static_cast<int64_t>(list.size()) / 2}, list, DType::i64);
  return out;
}

Graph import(const std::string& path, bool dense, ImportReport* report = nullptr) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.dims = {{"nodes", kNodes}};
  if (!dense) options.dims["edges"] = static_cast<int64_t>(edges().size());
  return OnnxFile(path).import(options, report);
}

std::vector<double> read_numbers(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<double> out;
  for (double value; in >> value;) out.push_back(value);
  return out;
}

class Gat : public testing::TestWithParam<bool> {
 protected:
  TemporaryFolder folder;
  std::string path = (folder / "gat.onnx").string();
};

TEST_P(Gat, LogitsAreThoseOfOnnxruntime) {
  write_gat(small(GetParam()), path);
  const Tensor logits = evaluate_graph(import(path, GetParam()), feeds(GetParam()))[0];
  const std::vector<double> want = read_numbers(SHARDRUN_SOURCE_DIR "/tests/models/gat_logits.txt");
  ASSERT_EQ(logits.shape(), (Shape{kNodes, kClasses}));
  ASSERT_EQ(want.size(), static_cast<size_t>(kNodes * kClasses));
  for (int64_t i = 0; i < logits.count(); ++i)
    EXPECT_NEAR(logits.at(i), want[static_cast<size_t>(i)], 2e-6) << i;
}

TEST_P(Gat, DescribedWeightsAreTheStoredOnes) {
  GatOptions o = small(GetParam());
  const int64_t stored_count = write_gat(o, path);
  const std::string described = (folder / "described.onnx").string();
  o.weights = false;
  EXPECT_EQ(write_gat(o, described), stored_count);
  ImportReport a, b;
  const Graph stored = import(path, GetParam(), &a), made = import(described, GetParam(), &b);
  EXPECT_EQ(a.parameters.size(), 8u);
  test::expect_same_weights(stored, a, made, b, o.seed);
}

/// Glorot: uniform within sqrt(6 / (in + out)), so its variance is a third of that squared.
TEST_P(Gat, WeightsAreGlorotUniform) {
  GatOptions o = small(GetParam());
  o.features = 90;
  o.hidden = 10;
  write_gat(o, path);
  const Graph graph = import(path, GetParam());
  const Interpreter weights(graph);
  const Tensor& w = weights.persistent("layers.0.weight");
  ASSERT_EQ(w.shape(), (Shape{90, 40}));
  const double bound = std::sqrt(6.0 / 100);
  double most = 0, squares = 0;
  for (int64_t i = 0; i < w.count(); ++i) {
    most = std::max(most, std::abs(w.at(i)));
    squares += w.at(i) * w.at(i);
  }
  EXPECT_LE(most, bound);
  EXPECT_GT(most, 0.99 * bound);
  EXPECT_NEAR(squares / static_cast<double>(w.count()), bound * bound / 3, 0.05 * bound * bound);
}

TEST_P(Gat, DropoutIsActiveInTraining) {
  GatOptions o = small(GetParam());
  write_gat(o, path);
  const Tensor plain = evaluate_graph(import(path, GetParam()), feeds(GetParam()))[0];
  for (double* ratio : {&o.dropout, &o.attention_dropout}) {
    *ratio = 0.5;
    write_gat(o, path);
    *ratio = 0;
    NamedTensors with_step = feeds(GetParam());
    with_step[kRandomStep] = Tensor::scalar_i64(3);
    const Tensor dropped = evaluate_graph(import(path, GetParam()), with_step)[0];
    int differ = 0;
    for (int64_t i = 0; i < plain.count(); ++i) differ += dropped.at(i) != plain.at(i);
    EXPECT_GT(differ, plain.count() / 2);
  }
}

TEST(GatElsewhere, PassesTheCheckerAndRuns) {
  const TemporaryFolder folder;
  const char* python = std::getenv("SHARDRUN_PEER_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SHARDRUN_PEER_PYTHON names no Python with onnx and onnxruntime";
  std::string paths;
  for (const bool dense : {false, true}) {
    const std::string name = (folder / (dense ? "dense.onnx" : "sparse.onnx")).string();
    write_gat(small(dense), name);
    paths += " " + name;
  }
  const std::string out = (folder / "logits.txt").string();
  const std::string command =
      str(python, " " SHARDRUN_SOURCE_DIR "/tests/models/gat_logits.py", paths, " > ", out);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_EQ(read_numbers(out), read_numbers(SHARDRUN_SOURCE_DIR "/tests/models/gat_logits.txt"));
}

INSTANTIATE_TEST_SUITE_P(Forms, Gat, testing::Bool(),
                         [](const auto& info) { return info.param ? "dense" : "sparse"; });

TEST(GatPresets, HaveTheirNamesSizes) {
  const TemporaryFolder folder;
  const std::string path = (folder / "gat.onnx").string();
  // Cora: 1433 x 64 + 2 x 64 + 64, then 64 x 7 + 2 x 7 + 7. MetaDist: 24576 squared a head.
  const std::pair<const char*, int64_t> sizes[] = {{"cora", 92373},
                                                   {"metadist-1", 604053504},
                                                   {"metadist-2", 1208082432},
                                                   {"metadist-4", 2416140288},
                                                   {"metadist-8", 4832256000}};
  for (const auto& [name, parameters] : sizes) {
    GatOptions o = gat_preset(name);
    o.weights = false;
    EXPECT_EQ(write_gat(o, path), parameters) << name;
  }
  EXPECT_THROW(gat_preset("pubmed"), Error);
  GatOptions wrong = small(true);
  wrong.edges = 5;
  EXPECT_THROW(write_gat(wrong, path), Error);
  wrong = small(false);
  wrong.heads = 0;
  EXPECT_THROW(write_gat(wrong, path), Error);
}

}  // namespace
}  // namespace shardrun
