// The graph network simulators that models/gns.h writes: what they compute, both forms of their
// weights, their sizes.
#include "models/gns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"
#include "tests/models/same_weights.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;

constexpr int64_t kNodes = 7, kEdges = 12, kFeatures = 3, kEdgeFeatures = 2, kLatent = 5;

GnsOptions small(bool globals) {
  GnsOptions o;
  o.steps = 3;
  o.features = kFeatures;
  o.edge_features = kEdgeFeatures;
  o.hidden = 6;
  o.latent = kLatent;
  o.mlp_layers = 2;
  o.outputs = 2;
  o.globals = globals;
  o.seed = 11;
  return o;
}

std::vector<int64_t> sources() {
  std::vector<int64_t> out;
  for (int64_t e = 0; e < kEdges; ++e) out.push_back(e * 5 % kNodes);
  return out;
}
/// No edge goes to the last node.
std::vector<int64_t> targets() {
  std::vector<int64_t> out;
  for (int64_t e = 0; e < kEdges; ++e) out.push_back(e * 3 % (kNodes - 1));
  return out;
}

std::vector<float> numbers(int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>((5 * i + 2) % 11 - 5) / 5);
  return out;
}

NamedTensors feeds() {
  std::vector<int64_t> edges = sources();
  for (const int64_t t : targets()) edges.push_back(t);
  return {
      {"features", Tensor::from(Shape{kNodes, kFeatures}, numbers(kNodes * kFeatures), DType::f32)},
      {"edge_features",
       Tensor::from(Shape{kEdges, kEdgeFeatures}, numbers(kEdges * kEdgeFeatures), DType::f32)},
      {"edge_index", Tensor::from(Shape{2, kEdges}, edges, DType::i64)}};
}

Graph import(const std::string& path, ImportReport* report = nullptr) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.dims = {{"nodes", kNodes}, {"edges", kEdges}};
  return OnnxFile(path).import(options, report);
}

/// What gns.h says, row by row, in double precision.
class ByHand {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  ByHand(const GnsOptions& options, const Interpreter& weights) : o_(options), weights_(weights) {}

  Rows predictions() const {
    const Rows features = rows(numbers(kNodes * kFeatures), kFeatures);
    Rows v = mlp("encoder.nodes.", features);
    Rows e = mlp("encoder.edges.", rows(numbers(kEdges * kEdgeFeatures), kEdgeFeatures));
    Rows u = o_.globals ? mlp("encoder.globals.", {mean(features)}) : Rows();
    const std::vector<int64_t> from = sources(), to = targets();
    for (int64_t step = 0; step < o_.steps; ++step) {
      const std::string at = str("steps.", step, ".");
      Rows in;
      for (size_t i = 0; i < e.size(); ++i)
        in.push_back(concatenated({e[i], v[static_cast<size_t>(from[i])],
                                   v[static_cast<size_t>(to[i])], o_.globals ? u[0] : Row()}));
      add(e, mlp(at + "edges.", in));
      const Rows incoming = sums(e, to), outgoing = sums(e, from);
      in.clear();
      for (size_t i = 0; i < v.size(); ++i)
        in.push_back(o_.globals ? concatenated({v[i], incoming[i], outgoing[i], u[0]})
                                : concatenated({v[i], incoming[i]}));
      add(v, mlp(at + "nodes.", in));
      if (o_.globals) add(u, mlp(at + "globals.", {concatenated({u[0], mean(e), mean(v)})}));
    }
    if (o_.globals) {
      for (Row& row : v) row = concatenated({row, u[0]});
    }
    return layers("decoder.", v);
  }

 private:
  static Rows rows(const std::vector<float>& values, int64_t columns) {
    Rows out;
    for (auto at = values.begin(); at != values.end(); at += columns)
      out.emplace_back(at, at + columns);
    return out;
  }
  static Row concatenated(const Rows& parts) {
    Row out;
    for (const Row& part : parts) out.insert(out.end(), part.begin(), part.end());
    return out;
  }
  static Row mean(const Rows& in) {
    Row out(in[0].size(), 0.0);
    for (const Row& row : in) {
      for (size_t k = 0; k < out.size(); ++k) out[k] += row[k] / static_cast<double>(in.size());
    }
    return out;
  }
  static Rows sums(const Rows& edges, const std::vector<int64_t>& ends) {
    Rows out(kNodes, Row(kLatent, 0.0));
    for (size_t e = 0; e < edges.size(); ++e) {
      for (size_t k = 0; k < edges[e].size(); ++k)
        out[static_cast<size_t>(ends[e])][k] += edges[e][k];
    }
    return out;
  }
  static void add(Rows& to, const Rows& change) {
    for (size_t i = 0; i < to.size(); ++i) {
      for (size_t k = 0; k < to[i].size(); ++k) to[i][k] += change[i][k];
    }
  }

  Rows layers(const std::string& prefix, Rows x) const {
    for (int64_t l = 0; l <= o_.mlp_layers; ++l) {
      const Tensor& w = weights_.persistent(str(prefix, "layers.", l, ".weight"));
      const Tensor& b = weights_.persistent(str(prefix, "layers.", l, ".bias"));
      const int64_t out = w.shape()[1];
      for (Row& row : x) {
        EXPECT_EQ(std::ssize(row), w.shape()[0]) << prefix << l;
        Row y;
        for (int64_t j = 0; j < out; ++j) {
          double sum = b.at(j);
          for (int64_t i = 0; i < std::ssize(row); ++i)
            sum += row[static_cast<size_t>(i)] * w.at(i * out + j);
          y.push_back(l < o_.mlp_layers ? std::max(sum, 0.0) : sum);
        }
        row = std::move(y);
      }
    }
    return x;
  }
  Rows mlp(const std::string& prefix, Rows x) const {
    x = layers(prefix, std::move(x));
    for (Row& row : x) {
      double middle = 0, variance = 0;
      for (const double value : row) middle += value / kLatent;
      for (const double value : row) variance += (value - middle) * (value - middle) / kLatent;
      for (double& value : row) value = (value - middle) / std::sqrt(variance + 1e-5);
    }
    return x;
  }

  const GnsOptions& o_;
  const Interpreter& weights_;
};

class Gns : public testing::TestWithParam<bool> {
 protected:
  TemporaryFolder folder;
  std::string path = (folder / "gns.onnx").string();
};

TEST_P(Gns, PredictionsAreThoseOfItsFormulas) {
  const GnsOptions options = small(GetParam());
  write_gns(options, path);
  const Graph graph = import(path);
  const Tensor got = evaluate_graph(graph, feeds())[0];
  const Interpreter weights(graph);
  const ByHand::Rows want = ByHand(options, weights).predictions();
  ASSERT_EQ(got.shape(), (Shape{kNodes, options.outputs}));
  for (int64_t i = 0; i < got.count(); ++i) {
    const double wanted = want[static_cast<size_t>(i / 2)][static_cast<size_t>(i % 2)];
    EXPECT_NEAR(got.at(i), wanted, 1e-5 * (1 + std::abs(wanted))) << i;
  }
}

TEST_P(Gns, DescribedWeightsAreTheStoredOnes) {
  GnsOptions o = small(GetParam());
  const int64_t count = write_gns(o, path);
  const std::string described = (folder / "described.onnx").string();
  o.weights = false;
  EXPECT_EQ(write_gns(o, described), count);
  ImportReport a, b;
  const Graph stored = import(path, &a), made = import(described, &b);
  EXPECT_EQ(test::expect_same_weights(stored, a, made, b, o.seed), count);
}

INSTANTIATE_TEST_SUITE_P(Forms, Gns, testing::Bool(),
                         [](const auto& info) { return info.param ? "globals" : "plain"; });

TEST(GnsElsewhere, PassesTheCheckerAndRuns) {
  const char* python = std::getenv("SHARDRUN_PEER_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SHARDRUN_PEER_PYTHON names no Python with onnx and onnxruntime";
  const TemporaryFolder folder;
  std::string paths;
  for (const bool globals : {false, true}) {
    const std::string name = (folder / (globals ? "globals.onnx" : "plain.onnx")).string();
    GnsOptions o = small(globals);
    o.nodes = kNodes;
    o.edges = kEdges;
    write_gns(o, name);
    paths += " " + name;
  }
  const std::string command =
      str(python, " " SHARDRUN_SOURCE_DIR "/tests/models/runs_elsewhere.py", paths);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

/// Parameters of an MLP from `in`, with its norm.
int64_t mlp(int64_t in, int64_t layers, int64_t hidden, int64_t out) {
  return in * hidden + hidden + (layers - 1) * (hidden * hidden + hidden) + hidden * out + 3 * out;
}

TEST(GnsPresets, HaveTheirNamesSizes) {
  const TemporaryFolder folder;
  const std::string path = (folder / "gns.onnx").string();
  GnsOptions o = gns_preset("toast");
  o.weights = false;
  const int64_t latent = 2048, hidden = 1024;
  const auto of = [&](int64_t in, int64_t layers) { return mlp(in, layers, hidden, latent); };
  // A step: edges see 4 latents, nodes 4, globals 3. The decoder sees 2, and has no norm.
  const int64_t steps = 24 * (of(4 * latent, 3) + of(4 * latent, 3) + of(3 * latent, 3));
  const int64_t encoders = of(16, 3) + of(4, 3) + of(16, 3);
  const int64_t decoder = mlp(2 * latent, 3, hidden, 3) - 2 * 3;
  EXPECT_EQ(write_gns(o, path), steps + encoders + decoder);
  EXPECT_EQ(write_gns(o, path), 875246595);  // TOAST: 875 M
  EXPECT_LT(std::filesystem::file_size(path), 2000000U);
  // Without globals and with two hidden layers, as Sanchez-Gonzalez et al. have them.
  o.globals = false;
  o.mlp_layers = 2;
  EXPECT_EQ(write_gns(o, path), 24 * (of(3 * latent, 2) + of(2 * latent, 2)) + of(16, 2) +
                                    of(4, 2) + mlp(latent, 2, hidden, 3) - 2 * 3);
  EXPECT_THROW(gns_preset("water"), Error);
  o.steps = 0;
  EXPECT_THROW(write_gns(o, path), Error);
}

}  // namespace
}  // namespace shardrun
