// Meshes of many axes: neighbours joined, and plans that are combined from those of fewer.
#include "planner/meshes/merged_axes.h"

#include <gtest/gtest.h>

#include "graph/passes/recompute.h"
#include "planner/cost/cluster_file.h"
#include "planner/plan_search.h"
#include "planner/schedule/schedule.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::gpt_step;
using test::rules;
using test::small;

Plan plan_of(const Graph& graph, const std::string& mesh, PlanOptions options = {},
             PlanReport* report = nullptr) {
  const Plan plan =
      plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules(), report);
  check_plan(plan, graph);
  return plan;
}

const Graph& step() {
  static const Graph graph = gpt_step(small());
  return graph;
}

TEST(MergedAxes, NeighboursAreJoined) {
  std::set<std::string> meshes;
  for (const MergedMesh& merged : merged_meshes(Mesh::parse("a=2,b=4,c=8,d=3"), 2))
    meshes.insert(merged.mesh.to_string());
  EXPECT_EQ(meshes, (std::set<std::string>{"a=2,b*c*d=96", "a*b=8,c*d=24", "a*b*c=64,d=3"}));
  EXPECT_EQ(merged_meshes(Mesh::parse("2x2x2x2x2"), 3).size(), 6U);
  // An axis of one rank is none.
  const std::vector<MergedMesh> two = merged_meshes(Mesh::parse("a=2,one=1,b=3,c=5"), 2);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].axes, (std::vector<std::vector<int>>{{0}, {2, 3}}));
}

/// Links of one node are alike: 2x2x4 stands for 4x2x2 as well. On two nodes of eight the first
/// axis of 4x2x2 has two ranks on each of two nodes, and that of 2x2x4 and 2x4x2 one.
TEST(MergedAxes, MeshesThatAreAlikeAreGrouped) {
  const std::vector<MergedMesh> all = merged_meshes(Mesh::parse("a=2,b=2,c=2,d=2"), 3);
  const auto groups = grouped(all, load_cluster("a100-40:2"));
  const auto names = [](const std::vector<std::vector<MergedMesh>>& of) {
    std::vector<std::vector<std::string>> out;
    for (const auto& group : of) {
      out.emplace_back();
      for (const MergedMesh& merged : group) out.back().push_back(merged.mesh.to_string());
    }
    return out;
  };
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(names(groups), (Names{{"a=2,b*c=4,d=2", "a=2,c*d=4,b=2"}, {"a*b=4,c=2,d=2"}}));
  EXPECT_EQ(groups[0][1].axes, (std::vector<std::vector<int>>{{0}, {2, 3}, {1}}));
  EXPECT_EQ(names(grouped(all, host_cluster())),
            (Names{{"a=2,b*c=4,d=2", "c=2,a*b=4,d=2", "a=2,c*d=4,b=2"}}));
}

/// Where sizes divide, each rank has the same of a value as on the merged mesh.
TEST(MergedAxes, ShardsStay) {
  const Mesh mesh = Mesh::parse("a=2,b=3,c=2,d=2");
  const Shape shape = {24, 48, 24};
  const std::vector<std::vector<Axes>> cuts = {{{0}, {1}, {}}, {{}, {0, 1}, {}}, {{1}, {}, {0}}};
  for (const MergedMesh& merged : merged_meshes(mesh, 2)) {
    for (const std::vector<Axes>& dims : cuts) {
      Sharding coarse = Sharding::replicated(3);
      coarse.dims = dims;
      const Sharding fine = refined(coarse, merged);
      for (int64_t rank = 0; rank < mesh.size(); ++rank)
        EXPECT_EQ(local_box(shape, fine, mesh, mesh.coordinates(rank)),
                  local_box(shape, coarse, merged.mesh, merged.mesh.coordinates(rank)))
            << merged.mesh.to_string() << " rank " << rank;
    }
  }
}

/// Four and five axes: no slower than on any mesh with neighbours joined, and trained as one rank.
TEST(MergedAxes, PlansAreCombined) {
  for (const char* text : {"2x2x2x2", "2x1x2x2x3"}) {
    SCOPED_TRACE(text);
    PlanReport report;
    const Plan plan = plan_of(step(), text, {}, &report);
    EXPECT_FALSE(report.has_bound);
    for (const MergedMesh& merged : merged_meshes(Mesh::parse(text), 3)) {
      EXPECT_LE(plan.seconds, plan_of(step(), merged.mesh.to_string()).seconds * (1 + 1e-4))
          << merged.mesh.to_string();
    }
    test::expect_trains_as_one(step(), plan);
  }
  PlanReport five;
  (void)plan_of(step(), "2x2x2x2x2", {}, &five);
  EXPECT_FALSE(five.has_bound);
}

/// A pool has strategies of the step's nodes. One that runs again takes those of its first run.
TEST(MergedAxes, WhatRunsAgainIsCut) {
  const Plan first = plan_of(step(), "2x2x2x2");
  StrategyPool pool;
  for (const auto& [name, node] : first.nodes) pool[name].push_back(node);
  const Graph again = with_recomputed(step(), {"h.0.Gelu"});
  PlanOptions options;
  options.pool = &pool;
  options.recomputed = {"h.0.Gelu"};
  PlanReport report;
  const Cluster cluster = host_cluster();
  MeshTables tables(first.mesh, cluster);
  PlanSearch search(again, tables, options, rules());
  search.open(report);
  const Plan plan = search.loose().plan;
  const NodePlan& node = plan.nodes.at(kAgain + "h.0.Gelu");
  EXPECT_EQ(node, first.nodes.at("h.0.Gelu"));
  EXPECT_FALSE(node.out[0].is_replicated());
  test::expect_trains_as_one(again, plan);
}

/// One on all axes is combined from merged meshes as well, and none of those is faster.
TEST(MergedAxes, KnownParallelismsAreCombined) {
  for (const auto& known : kBaselines) {
    SCOPED_TRACE(known.name);
    PlanOptions options;
    options.planner = parse_planner(known.name);
    PlanReport report;
    const Plan plan = plan_of(step(), "2x2x2x2", options, &report);
    EXPECT_FALSE(report.has_bound);
    for (const MergedMesh& merged : merged_meshes(Mesh::parse("2x2x2x2"), 3)) {
      EXPECT_LE(plan.seconds,
                plan_of(step(), merged.mesh.to_string(), options).seconds * (1 + 1e-4))
          << merged.mesh.to_string();
    }
    test::expect_trains_as_one(step(), plan);
  }
}

/// Axes are joined where the same is asked of them, and then it is asked of what they make.
TEST(MergedAxes, TacticsAreAskedOfMergedAxes) {
  const Mesh mesh = Mesh::parse("data=2,model=2*2,c=2");
  const std::vector<AskedOfAxis> asked =
      asked_of_axes({}, {"batch@data", "#3@model/10", "inner@model", "batch@c"}, mesh);
  std::vector<std::string> joined;
  for (const MergedMesh& merged : merged_meshes(mesh, 3)) {
    if (!joins_alike(merged, asked)) continue;
    PlannerChoice planner;
    std::vector<std::string> tactics;
    ask_merged(merged, asked, planner, tactics);
    EXPECT_TRUE(planner.baselines.empty());
    joined.push_back(merged.mesh.to_string());
    EXPECT_EQ(tactics, (std::vector<std::string>{"batch@data", "#3@model.0*model.1/10",
                                                 "inner@model.0*model.1", "batch@c"}));
    EXPECT_EQ(parse_tactics(tactics, merged.mesh).size(), tactics.size());
  }
  EXPECT_EQ(joined, std::vector<std::string>{"data=2,model.0*model.1=4,c=2"});
  const Mesh four = Mesh::parse("2x2x2x2");
  const PlannerChoice mixed = parse_planner("dp+dp+megatron+fsdp");
  const std::vector<AskedOfAxis> of_mixed = asked_of_axes(mixed, {}, four);
  for (const MergedMesh& merged : merged_meshes(four, 3)) {
    PlannerChoice planner;
    std::vector<std::string> tactics;
    ask_merged(merged, of_mixed, planner, tactics);
    if (joins_alike(merged, of_mixed)) {
      EXPECT_EQ(planner.baselines, parse_planner("dp+megatron+fsdp").baselines);
    }
  }
}

/// So are tactics that leave three axes or fewer to cut.
TEST(MergedAxes, TacticsOfManyAxesArePlanned) {
  for (const std::vector<std::string>& tactics : {std::vector<std::string>{"auto@a"},
                                                  {"auto@a", "auto@b", "auto@c", "auto@d"},
                                                  {"batch@a", "inner@b", "inner@c"}}) {
    SCOPED_TRACE(tactics.back());
    PlanOptions options;
    options.tactics = tactics;
    PlanReport report;
    const Plan plan = plan_of(step(), "a=2,b=2,c=2,d=2", options, &report);
    EXPECT_FALSE(report.has_bound);
    test::expect_trains_as_one(step(), plan);
  }
}

/// What a schedule asks and a pool does not have is looked for among all strategies.
TEST(MergedAxes, APoolDoesNotLoosenASchedule) {
  const StrategyPool none;
  PlanOptions options;
  options.pool = &none;
  options.planner = parse_planner("dp");
  PlanReport report;
  const Cluster cluster = host_cluster();
  const Mesh mesh = Mesh::parse("data=2");
  MeshTables tables(mesh, cluster);
  PlanSearch search(step(), tables, options, rules());
  search.open(report);
  const Plan plan = search.loose().plan;
  EXPECT_EQ(to_string(plan.values.at("tokens"), mesh), "[{data}, -]");
  EXPECT_EQ(to_string(plan.nodes.at("h.0.Gelu").out[0], mesh), "[{data}, -, -]");
}

/// Only plans of the mesh itself are laid out and timed: values may be pinned there alone.
TEST(MergedAxes, TimesAreOfTheMeshItself) {
  PlanOptions options;
  int plans = 0;
  options.retime = [&](Plan& plan) {
    EXPECT_EQ(plan.mesh.to_string(), Mesh::parse("2x2x2x2").to_string());
    ++plans;
  };
  (void)plan_of(step(), "2x2x2x2", options);
  EXPECT_GT(plans, 0);
}

TEST(MergedAxes, RequestsAndTacticsHold) {
  PlanOptions options;
  options.requests = {"tokens=[c,-]", "h.0.mlp.c_fc.weight=[-,b]"};
  const Plan pinned = plan_of(step(), "a=2,b=2,c=2,d=2", options);
  EXPECT_EQ(to_string(pinned.values.at("tokens"), pinned.mesh), "[{c}, -]");
  EXPECT_EQ(to_string(pinned.values.at("h.0.mlp.c_fc.weight"), pinned.mesh), "[-, {b}]");
  PlanOptions tactics;
  tactics.tactics = {"batch@a", "inner@b", "weights@a", "#1@d"};
  const Plan plan = plan_of(step(), "a=2,b=2,c=2,d=2", tactics);
  EXPECT_EQ(to_string(plan.values.at("tokens"), plan.mesh), "[{a}, {d}]");
  test::expect_trains_as_one(step(), plan);
  PlanOptions baseline;
  baseline.planner = parse_planner("fsdp+megatron+dp+megatron");
  test::expect_trains_as_one(step(), plan_of(step(), "a=2,b=2,c=2,d=2", baseline));
}

}  // namespace
}  // namespace shardrun
