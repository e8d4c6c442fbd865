// enumerate_strategies: the product of options over mesh axes, and what is left out of it.
#include "planner/space/strategy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace shardrun {
namespace {

struct Case {
  Node node;
  std::vector<TensorType> in, out;
  SpmdRule rule;
};

Case make(const std::string& op, Attrs attrs, std::vector<TensorType> in) {
  Case c;
  c.node.op = op;
  c.node.name = "test";
  c.node.attrs = std::move(attrs);
  c.in = std::move(in);
  c.out = infer_types(c.node, c.in);
  c.rule = discover(c.node, c.in);
  return c;
}

std::vector<Strategy> strategies(const Case& c, const Mesh& mesh) {
  return enumerate_strategies(c.node, c.in, c.out, c.rule, mesh, host_cluster());
}

std::string text(const Strategy& s, const Mesh& mesh) {
  std::string out;
  for (const auto& in : s.in) out += to_string(in, mesh) + " ";
  out += "->";
  for (const auto& r : s.out) out += " " + to_string(r, mesh);
  return out;
}

std::set<std::string> texts(const Case& c, const Mesh& mesh) {
  std::set<std::string> out;
  for (const Strategy& s : strategies(c, mesh)) out.insert(text(s, mesh));
  return out;
}

Case matmul(int64_t i, int64_t j, int64_t k) {
  return make("matmul", {{"equation", std::string("ij,jk->ik")}},
              {{DType::f32, {i, j}}, {DType::f32, {j, k}}});
}

TEST(Strategy, IsTheProductOfOptionsOverAxes) {
  const Mesh mesh = Mesh::parse("data=2,model=4");
  const Case c = matmul(64, 48, 80);
  const std::vector<Strategy> all = strategies(c, mesh);
  EXPECT_EQ(all.size(), 36u);  // 5 options and replication, on two axes
  EXPECT_TRUE(all[0].in[0].is_replicated() && all[0].in[1].is_replicated() &&
              all[0].out[0].is_replicated());
  const std::set<std::string> found = texts(c, mesh);
  EXPECT_EQ(found.size(), all.size());
  EXPECT_EQ(found.count("[{data}, -] [-, {model}] -> [{data}, {model}]"), 1u);
  EXPECT_EQ(found.count("[{data}, {model}] [{model}, -] -> [{data}, -] partial(sum: model)"), 1u);
  EXPECT_EQ(found.count("[{data,model}, -] [-, -] -> [{data,model}, -]"), 1u);
  EXPECT_EQ(found.count("[-, {data,model}] [{data,model}, -] -> [-, -] partial(sum: data,model)"),
            1u);
}

TEST(Strategy, OrderAndCostsAreTheSameEachTime) {
  const Mesh mesh = Mesh::parse("2x2x2");
  const Case c = matmul(64, 48, 80);
  const std::vector<Strategy> a = strategies(c, mesh), b = strategies(c, mesh);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].in == b[i].in && a[i].out == b[i].out && a[i].seconds == b[i].seconds) << i;
  }
}

TEST(Strategy, LeavesNoRankEmpty) {
  // 3 rows over 4 parts are 1, 1, 1, 0; 5 are 2, 2, 1, 0 on one axis of 4 and 2, 1, 1, 1 on two
  // of 2.
  EXPECT_EQ(
      texts(matmul(3, 48, 80), Mesh::parse("model=4")).count("[{model}, -] [-, -] -> [{model}, -]"),
      0u);
  EXPECT_EQ(
      texts(matmul(5, 48, 80), Mesh::parse("model=4")).count("[{model}, -] [-, -] -> [{model}, -]"),
      0u);
  EXPECT_EQ(texts(matmul(5, 48, 80), Mesh::parse("2x2")).count("[{a,b}, -] [-, -] -> [{a,b}, -]"),
            1u);
  EXPECT_EQ(texts(matmul(3, 48, 80), Mesh::parse("2x2")).count("[{a,b}, -] [-, -] -> [{a,b}, -]"),
            0u);
  EXPECT_EQ(texts(matmul(10, 48, 80), Mesh::parse("model=4"))
                .count("[{model}, -] [-, -] -> [{model}, -]"),
            1u);
}

TEST(Strategy, ReshapeIsCutOnlyWhereShardsLineUp) {
  // [6, 4] -> [24]: halves and thirds of 6 rows are halves and thirds of 24; quarters are not.
  const Case c = make("reshape", {{"shape", std::vector<int64_t>{24}}}, {{DType::f32, {6, 4}}});
  EXPECT_EQ(texts(c, Mesh::parse("2")).count("[{a}, -] -> [{a}]"), 1u);
  EXPECT_EQ(texts(c, Mesh::parse("3")).count("[{a}, -] -> [{a}]"), 1u);
  EXPECT_EQ(texts(c, Mesh::parse("4")).count("[{a}, -] -> [{a}]"), 0u);
  EXPECT_EQ(texts(c, Mesh::parse("2x2")).count("[{a,b}, -] -> [{a,b}]"), 0u);
  EXPECT_EQ(texts(c, Mesh::parse("2x3")).count("[{a,b}, -] -> [{a,b}]"), 1u);
}

TEST(Strategy, DoesNotMixSumsAndMaxima) {
  const Case c = make("add", {}, {{DType::f32, {8}}, {DType::f32, {8}}});
  for (const Strategy& s : strategies(c, Mesh::parse("2x2"))) {
    for (const std::vector<Sharding>* side : {&s.in, &s.out}) {
      for (const Sharding& sharding : *side) {
        for (const auto& p : sharding.partial) EXPECT_EQ(p.op, sharding.partial[0].op);
      }
    }
  }
}

TEST(Strategy, AxesOfOneRankCutNothing) {
  const Case c = matmul(64, 48, 80);
  EXPECT_EQ(strategies(c, Mesh::parse("1x2")).size(), 6u);
  EXPECT_EQ(strategies(c, Mesh()).size(), 1u);
}

TEST(Strategy, CuttingALargeMatmulCutsItsTime) {
  const Case c = matmul(4096, 4096, 4096);
  const std::vector<Strategy> all = strategies(c, Mesh::parse("4"));
  const Cluster cluster = host_cluster();
  // 2 * 4096^3 FLOPs in f32.
  EXPECT_NEAR(all[0].seconds,
              2 * std::pow(4096.0, 3) / cluster.flops_for(DType::f32) + cluster.kernel_latency,
              1e-9);
  for (const Strategy& s : all) {
    if (!s.in[0].is_uncut() || !s.in[1].is_uncut()) {
      EXPECT_NEAR(s.seconds - cluster.kernel_latency, (all[0].seconds - cluster.kernel_latency) / 4,
                  1e-6);
    }
  }
}

}  // namespace
}  // namespace shardrun
