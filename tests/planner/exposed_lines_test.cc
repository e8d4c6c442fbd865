// Which fraction of exposed sums is searched for next.
#include "planner/exposed_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/plan_search.h"
#include "planner/reshard/reshard.h"
#include "tests/planner/perceptron.h"

namespace shardrun {
namespace {

using Crossing = ExposedLines::Crossing;

void expect(const std::optional<Crossing>& found, size_t left, size_t right, double exposed,
            double seconds) {
  ASSERT_TRUE(found);
  EXPECT_EQ(found->left, left);
  EXPECT_EQ(found->right, right);
  EXPECT_NEAR(found->exposed, exposed, 1e-12);
  EXPECT_NEAR(found->seconds, seconds, 1e-12);
}

TEST(ExposedLines, TheFirstCrossingIsOfBothEnds) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({4, 12, 11});
  expect(lines.next(), 0, 1, 2.0 / 3, 8 + 4.0 / 3);
  EXPECT_FALSE(lines.next());  // each once
}

TEST(ExposedLines, ThenNextToTheFastestPlan) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({4, 12, 11});
  (void)lines.next();
  // Below both where they cross; as a plan the slowest. Its neighbour is the fastest.
  lines.add({5, 10.5, 13});
  expect(lines.next(), 0, 2, 3 / 3.5, 8 + 2 * 3 / 3.5);
  EXPECT_FALSE(lines.next());
}

TEST(ExposedLines, OfTwoNeighboursTheOneWhosePlanIsFaster) {
  for (const bool more : {false, true}) {
    ExposedLines lines;
    lines.add({8, 10, more ? 19.0 : 20.0});
    lines.add({4, 12, more ? 20.0 : 19.0});
    (void)lines.next();
    lines.add({5, 10.5, 8});
    if (more) lines.add({9, 11, 20});  // never the least: no neighbour
    const std::optional<Crossing> found = lines.next(), other = lines.next();
    ASSERT_TRUE(found && other);
    EXPECT_EQ(found->left, more ? 0u : 2u);
    EXPECT_EQ(other->left, more ? 2u : 0u);
    EXPECT_FALSE(lines.next());
  }
}

TEST(ExposedLines, ALineThatIsNeverLeastIsNoNeighbour) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({7.9, 13, 5});  // the fastest plan, but above the others' crossing
  lines.add({4, 12, 11});
  expect(lines.next(), 0, 2, 2.0 / 3, 8 + 4.0 / 3);
  EXPECT_FALSE(lines.next());
}

TEST(ExposedLines, TheFastestIsTheFirstOfTheLeastStep) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({4, 12, 7});
  lines.add({5, 11, 7});
  EXPECT_EQ(lines.fastest(), 1U);
}

TEST(ExposedLines, EqualLinesDoNotCross) {
  ExposedLines lines;
  lines.add({3, 3, 3});
  lines.add({3, 3, 3});
  EXPECT_FALSE(lines.next());
}

/// A device of which three quarters of all sums of gradients are exposed. `plan` gets the times
/// that it has there, whatever the search took for them.
void time_as_exposed(const Graph& graph, const Cluster& cluster, Plan& plan) {
  double sums = 0, rest = 0;
  std::set<std::pair<ValueId, Sharding>> made;
  for (const Node& node : graph.nodes()) {
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const Value& value = graph.value(node.inputs[k]);
      const Sharding &from = plan.values.at(value.name), &to = plan.nodes.at(node.name).in[k];
      if (!made.emplace(node.inputs[k], to).second) continue;
      const bool sum = node.phase == Phase::update && !from.partial.empty();
      (sum ? sums : rest) +=
          reshard_seconds(cheapest_reshard(value.type, from, to, plan.mesh, cluster));
    }
  }
  plan.comm_seconds = rest + sums;
  plan.hidden_seconds = sums / 4;
  plan.seconds = plan.compute_seconds + plan.comm_seconds - plan.hidden_seconds;
}

/// Layers whose weights are cut or summed, according to what a sum is taken to cost. The search
/// finds the fraction; none of three fixed ones has a plan that is as fast.
TEST(ExposedLines, APlanThatNoFixedFractionFinds) {
  const Graph graph =
      test::perceptron(1024, {512, 384, 768, 256, 1024, 320, 640, 192, 896, 128}, {});
  Cluster cluster;
  cluster.flops = {{DType::f32, {50e9}}};
  cluster.collectives = Collectives::apart;
  const Mesh mesh = Mesh::parse("4");
  RuleCache rules;
  PlanOptions options;
  options.retime = [&](Plan& plan) { time_as_exposed(graph, cluster, plan); };
  double fixed = kInfeasible;
  MeshTables tables(mesh, cluster);
  for (const double exposed : {0.0, 0.5, 1.0}) {
    options.exposed = exposed;
    PlanSearch search(graph, tables, options, rules);
    PlanReport report;
    search.open(report);
    fixed = std::min(fixed, search.loose().plan.seconds);
  }
  options.exposed = 1;
  EXPECT_LT(plan_shardings(graph, mesh, cluster, options, rules).seconds, 0.999 * fixed);
}

}  // namespace
}  // namespace shardrun
