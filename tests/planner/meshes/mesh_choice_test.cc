// Which meshes are tried, and that the best is taken.
#include "planner/meshes/mesh_choice.h"

#include <gtest/gtest.h>

#include "graph/optimizer.h"

namespace shardrun {
namespace {

std::string list(int64_t ranks, const Cluster& cluster = {}) {
  std::string out;
  for (const Mesh& mesh : candidate_meshes(ranks, cluster)) {
    std::string sizes;
    for (const Mesh::Axis& axis : mesh.axes())
      sizes += (sizes.empty() ? "" : "x") + std::to_string(axis.size);
    out += (out.empty() ? "" : " ") + (sizes.empty() ? "1" : sizes);
  }
  return out;
}

TEST(MeshChoice, EqualLinksMakeOrderIrrelevant) {
  EXPECT_EQ(list(1), "1");
  EXPECT_EQ(list(2), "2");
  EXPECT_EQ(list(7), "7");
  EXPECT_EQ(list(4), "4 2x2");
  EXPECT_EQ(list(8), "8 2x4 2x2x2");
  EXPECT_EQ(list(12), "12 3x4 2x6 2x2x3");
  EXPECT_EQ(list(64), "64 8x8 4x16 2x32 4x4x4 2x4x8 2x2x16");
}

/// On two nodes of 8 the first axis of 2x8 goes between them, that of 8x2 also within (4 ranks on
/// each); 2x2x4 and 2x4x2 are the same, 4x2x2 is not. 8 ranks are on one node.
TEST(MeshChoice, NodesMakeOrderMatter) {
  Cluster cluster;
  cluster.nodes = 2;
  cluster.devices = 8;
  EXPECT_EQ(list(8, cluster), "8 2x4 2x2x2");
  EXPECT_EQ(list(16, cluster), "16 4x4 2x8 8x2 2x2x4 4x2x2");
}

/// 12 ranks on nodes of 8: rows of 4, of 3 and of 6 meet the nodes' border each at another place.
TEST(MeshChoice, IrregularMeshesAreAllTried) {
  Cluster cluster;
  cluster.nodes = 2;
  cluster.devices = 8;
  EXPECT_EQ(list(12, cluster), "12 3x4 4x3 2x6 6x2 2x2x3 2x3x2 3x2x2");
}

/// x w1 relu w2 against a target.
Graph mlp(int64_t batch, int64_t width) {
  Graph g;
  g.name = "mlp";
  ValueId x = g.add_input("x", {DType::f32, {batch, width}}, Role::batch);
  const ValueId target = g.add_input("target", {DType::f32, {batch, width}}, Role::batch);
  for (const std::string name : {"one", "two"}) {
    Source source;
    source.stream = name;
    const ValueId w =
        g.add_persistent(name + "/w", {DType::f32, {width, width}}, Role::parameter, source);
    g.trainable[w] = true;
    x = g.add("relu", {g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, name)}, {},
              name + "/relu");
  }
  const ValueId difference = g.add("sub", {x, target}, {}, "difference");
  g.loss = g.add("reduce_sum", {g.add("mul", {difference, difference}, {}, "square")},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
  attach_optimizer(g, {});
  return g;
}

TEST(MeshChoice, TheLeastPredictedTimeWins) {
  const Graph g = mlp(256, 256);
  RuleCache rules;
  PlanReport report;
  std::vector<MeshTrial> trials;
  const Plan best = plan_best_mesh(g, 8, host_cluster(), {}, 1e9, rules, &report, &trials);
  check_plan(best, g);
  ASSERT_EQ(trials.size(), 3u);
  for (const MeshTrial& trial : trials) {
    EXPECT_TRUE(trial.fits);
    EXPECT_LE(best.seconds, trial.seconds) << trial.mesh.to_string();
    // Each trial is what planning for that mesh alone finds.
    EXPECT_EQ(plan_shardings(g, trial.mesh, host_cluster(), {}, rules).seconds, trial.seconds);
  }
  EXPECT_GT(report.kernel_runs, 0);
  const Plan again = plan_best_mesh(g, 8, host_cluster(), {}, 1e9, rules);
  EXPECT_EQ(to_json(best), to_json(again));
}

TEST(MeshChoice, OneAxisIsAlwaysTriedAndMoreOnlyInTime) {
  const Graph g = mlp(64, 64);
  RuleCache rules;
  std::vector<MeshTrial> trials;
  plan_best_mesh(g, 8, host_cluster(), {}, 0, rules, nullptr, &trials);
  ASSERT_EQ(trials.size(), 1u);
  EXPECT_EQ(trials[0].mesh.axis_count(), 1);
}

TEST(MeshChoice, WhereNothingFitsTheBytesAreSaid) {
  const Graph g = mlp(64, 64);
  RuleCache rules;
  PlanOptions options;
  options.memory_limit = 1000;
  std::vector<MeshTrial> trials;
  try {
    plan_best_mesh(g, 4, host_cluster(), options, 1e9, rules, nullptr, &trials);
    FAIL() << "a plan was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(e.what()).find("the limit is 1000"), std::string::npos) << e.what();
  }
  EXPECT_EQ(trials.size(), 2u);
}

/// A limit between what one axis needs and what two need: the mesh that fits is taken.
TEST(MeshChoice, AMeshThatFitsBeatsAFasterOneThatDoesNot) {
  const Graph g = mlp(256, 256);
  RuleCache rules;
  PlanOptions options;
  const Mesh slow = Mesh::parse("2x2");
  options.arena_use = [&](const Plan& plan, int64_t) {
    const int64_t bytes = plan.mesh == slow ? int64_t{10} : int64_t{1} << 40;
    return ArenaUse{bytes, std::vector<int64_t>(g.nodes().size(), bytes)};
  };
  options.memory_limit = int64_t{1} << 30;
  EXPECT_EQ(plan_best_mesh(g, 4, host_cluster(), options, 1e9, rules).mesh, slow);
}

TEST(CandidateMeshes, OfBaselines) {
  const auto names = [](const std::vector<Mesh>& meshes) {
    std::string out;
    for (const Mesh& mesh : meshes) out += (out.empty() ? "" : " ") + mesh.to_string();
    return out;
  };
  Cluster nodes = host_cluster();
  nodes.devices = 4;
  EXPECT_EQ(names(candidate_meshes(12, host_cluster(), 2)), "a=3,b=4 a=4,b=3 a=2,b=6 a=6,b=2");
  EXPECT_EQ(names(candidate_meshes(4, nodes, 1)), "ranks=4");
  EXPECT_EQ(names(candidate_meshes(8, nodes, 1)), "ranks=8 a=2,b=4");
  EXPECT_TRUE(candidate_meshes(3, nodes, 2).empty());
}

}  // namespace
}  // namespace shardrun
