// PyTorch parity of graph attention, over a matrix and over a list of edges as PyTorch Geometric's
// GATConv exports it: forward, every gradient, three steps, alone and on meshes. The files come
// from tests/golden/make_graphs.py.
#include <gtest/gtest.h>

#include "tests/graph/onnx/cut_run.h"

namespace shardrun {
namespace {

using test::GoldenModel;

constexpr double kTolerance = 1e-4;

struct Case {
  const char* model;
  const char* exporter;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << "." << c.exporter; }
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.model) + "_" + info.param.exporter;
}

/// gat_conv leaves its sizes open; the record's are 11 nodes and 34 edges.
GoldenModel load(const Case& c) {
  ImportOptions options;
  if (c.model == std::string("gat_conv")) options.dims = {{"nodes", 11}, {"edges", 34}};
  return test::load_golden(c.model, c.exporter, LossKind::cross_entropy, options);
}

class OnnxGraphs : public testing::TestWithParam<Case> {};

TEST_P(OnnxGraphs, ForwardLossAndGradients) { load(GetParam()).expect_first_pass(kTolerance); }

TEST_P(OnnxGraphs, ThreeSteps) { load(GetParam()).expect_three_steps(kTolerance); }

/// However the exporters write the maximum, and with the guard that they add to the sum.
TEST(EdgeSoftmax, IsOneOverSegments) {
  for (const char* model : {"gat_conv", "gat_loops", "gat_edges", "gat_edge_loops"}) {
    for (const char* exporter : {"dynamo", "legacy"}) {
      const Graph graph = load({model, exporter}).forward;
      std::map<std::string, int> ops;
      for (const Node& node : graph.nodes()) ++ops[node.op];
      EXPECT_EQ(ops["segment_softmax"], 2) << model << " " << exporter;
      EXPECT_EQ(ops["scatter_elements"] + ops["exp"], 0) << model << " " << exporter;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxGraphs,
                         testing::Values(Case{"gat_dense", "dynamo"}, Case{"gat_dense", "legacy"},
                                         Case{"gat_conv", "dynamo"}, Case{"gat_conv", "legacy"},
                                         Case{"gat_loops", "dynamo"}, Case{"gat_loops", "legacy"},
                                         Case{"gat_edges", "dynamo"}, Case{"gat_edges", "legacy"},
                                         Case{"gat_edge_loops", "dynamo"},
                                         Case{"gat_edge_loops", "legacy"}),
                         name_of);

class OnnxGraphsOnMeshes : public testing::TestWithParam<Case> {};

/// Nodes, or edges, over the first axis (11 over 3 is 4, 4, 3; 34 is 12, 12, 10), heads over the
/// last.
TEST_P(OnnxGraphsOnMeshes, ThreeSteps) {
  const GoldenModel model = load(GetParam());
  const Graph graph = test::golden_training_graph(model.forward);
  for (const char* text : {"nodes=3", "nodes=2,heads=2"}) {
    const test::ShardedRun run = test::expect_losses_when_cut(
        graph, model.feeds, Mesh::parse(text), test::kGoldenRate, model.losses(), kTolerance);
    model.compare("after/", kTolerance,
                  [&](const std::string& name) { return run.persistent.at(name); });
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxGraphsOnMeshes,
                         testing::Values(Case{"gat_dense", "legacy"}, Case{"gat_conv", "dynamo"},
                                         Case{"gat_edge_loops", "legacy"}),
                         name_of);

TEST(SelfLoops, EdgesAreAConstantWhereTheyDecideSizes) {
  EXPECT_TRUE(load({"gat_loops", "legacy"}).noted("input 'edge_index' is a constant"));
  EXPECT_FALSE(load({"gat_conv", "legacy"}).noted("is a constant"));
}

}  // namespace
}  // namespace shardrun
