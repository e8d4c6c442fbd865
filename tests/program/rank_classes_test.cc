// Ranks that are said to need the same bytes do.
#include "program/partition/rank_classes.h"

#include <gtest/gtest.h>

#include "graph/optimizer.h"
#include "planner/planner.h"
#include "program/compile.h"

namespace shardrun {
namespace {

/// A step of training an MLP whose sizes divide by little.
Graph uneven_step(int64_t batch, int64_t width, int64_t in = 10, int64_t out = 7) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {batch, in}}, Role::batch);
  const auto parameter = [&](const char* name, Shape shape) {
    Source source;
    source.kind = Source::Kind::normal;
    source.b = 0.02;
    source.stream = name;
    const ValueId id =
        g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, source);
    g.trainable[id] = true;
    return id;
  };
  const ValueId a = parameter("a", {in, width}), b = parameter("b", {width, out});
  const ValueId h =
      g.add("tanh", {g.add("matmul", {x, a}, {{"equation", std::string("mk,kn->mn")}})});
  const ValueId y = g.add("matmul", {h, b}, {{"equation", std::string("mk,kn->mn")}});
  g.loss = g.add("reduce_sum", {g.add("mul", {y, y})},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}});
  g.metrics = {{"loss", g.loss}};
  attach_optimizer(g, {});
  return g;
}

/// As many bytes as the operands have: what a kernel might ask for.
StepBytes scratch(const Program& program, const Step& step) {
  int64_t bytes = 0;
  for (BufferId id : step.in) bytes += byte_size(program.buffers[static_cast<size_t>(id)].type);
  return {bytes};
}

TEST(RankClasses, SameClassSameBytes) {
  const BackendTraits traits{.needs = [](const Program& program, const Step& step, int) {
    return scratch(program, step);
  }};
  const Cluster cluster = host_cluster();
  RuleCache rules;
  for (const char* text : {"4", "2x3", "8x2", "2x2x2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const auto& [batch, width] : {std::pair<int64_t, int64_t>{24, 48}, {13, 9}, {7, 20}}) {
      const Graph graph = uneven_step(batch, width);
      const Plan plan = plan_shardings(graph, mesh, cluster, {}, rules);
      const Partition partition(graph, plan, cluster);
      const RankClasses classes = rank_classes(graph, plan, partition.cuts(), scratch);
      ASSERT_EQ(classes.of_rank.size(), static_cast<size_t>(mesh.size()));
      std::vector<int64_t> arena, persistent;
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const Program program = compile(partition, plan, rank, traits, {.steps = Steps::all});
        arena.push_back(program.arena_bytes);
        persistent.push_back(program.persistent_bytes);
        const auto like = static_cast<size_t>(
            classes.first[static_cast<size_t>(classes.of_rank[static_cast<size_t>(rank)])]);
        EXPECT_LE(like, static_cast<size_t>(rank));
        EXPECT_EQ(arena[like], arena.back()) << text << " rank " << rank;
        EXPECT_EQ(persistent[like], persistent.back()) << text << " rank " << rank;
        EXPECT_LE(arena.back(), 2 * arena[0]) << text << ": PlanPrograms::ample takes it so";
      }
    }
  }
}

TEST(RankClasses, OneWhereAllDivides) {
  const Graph graph = uneven_step(64, 64, 32, 16);
  const Mesh mesh = Mesh::parse("4x4");
  const Cluster cluster = host_cluster();
  RuleCache rules;
  PlanOptions options;
  options.planner = parse_planner("dp");
  const Plan plan = plan_shardings(graph, mesh, cluster, options, rules);
  const Partition partition(graph, plan, cluster);
  EXPECT_EQ(rank_classes(graph, plan, partition.cuts(), scratch).first, std::vector<int64_t>{0});
}

// 10 rows over 4 ranks are 3, 3, 3, 1.
TEST(RankClasses, ByWhatARankHolds) {
  const Graph graph = uneven_step(10, 64);
  const Mesh mesh = Mesh::parse("4");
  const Cluster cluster = host_cluster();
  RuleCache rules;
  PlanOptions options;
  options.planner = parse_planner("dp");
  const Plan plan = plan_shardings(graph, mesh, cluster, options, rules);
  const Cuts cuts = Partition(graph, plan, cluster).cuts();
  EXPECT_EQ(cuts.count({10, {0}}), 1u);
  EXPECT_EQ(rank_classes(graph, plan, cuts, scratch).of_rank, (std::vector<int>{0, 0, 0, 1}));
}

// A kernel whose needs depend on where its rank stands: iota from the middle on.
TEST(RankClasses, ByWhatKernelsNeed) {
  Graph graph;
  const ValueId at = graph.add("iota", {},
                               {{"shape", Shape{8}},
                                {"dtype", std::string("f32")},
                                {"axis", int64_t{0}},
                                {"start", int64_t{0}},
                                {"step", int64_t{1}}});
  graph.outputs = {at};
  Plan plan;
  plan.mesh = Mesh::parse("4");
  plan.nodes[graph.nodes()[0].name] = {{}, {Sharding{{{0}}, {}}}};
  plan.values[graph.value(at).name] = Sharding{{{0}}, {}};
  const Cluster cluster = host_cluster();
  const Cuts cuts = Partition(graph, plan, cluster).cuts();
  for (const StepBytes needed : {StepBytes{64, 0}, StepBytes{0, 64}}) {
    const auto late = [&](const Program&, const Step& step) {
      return step.kind == Step::Kind::kernel && step.node.attrs.i("start") >= 4 ? needed
                                                                                : StepBytes();
    };
    EXPECT_EQ(rank_classes(graph, plan, cuts, late).of_rank, (std::vector<int>{0, 0, 1, 1}));
  }
  EXPECT_EQ(rank_classes(graph, plan, cuts, nullptr).first.size(), 1u);
}

// A copy that is dropped again, and made in another Sharding for the next reader, counts like any
// other: 10 rows over 4 ranks.
TEST(RankClasses, ByWhatARankHoldsForATime) {
  Graph graph;
  const ValueId x = graph.add_input("x", {DType::f32, {10}}, Role::batch);
  const Attrs all = {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}};
  graph.outputs = {graph.add("reduce_sum", {x}, all), graph.add("reduce_sum", {x}, all)};
  Plan plan;
  plan.mesh = Mesh::parse("4");
  const Sharding whole = Sharding::replicated(1), cut{{{0}}, {}};
  plan.nodes[graph.nodes()[0].name] = {{cut}, {Sharding{{}, {{0, ReduceOp::sum}}}}};
  plan.nodes[graph.nodes()[1].name] = {{whole}, {Sharding::replicated(0)}};
  plan.values["x"] = whole;
  plan.regathered = {"x"};
  const Partition partition(graph, plan, host_cluster());
  EXPECT_EQ(rank_classes(graph, plan, partition.cuts(), nullptr).of_rank,
            (std::vector<int>{0, 0, 0, 1}));
}

}  // namespace
}  // namespace shardrun
