// StrategyTable: what is alike is enumerated once, and nothing else is taken for it.
#include "planner/space/strategy_table.h"

#include <gtest/gtest.h>

#include "planner/planner.h"
#include "tests/planner/perceptron.h"

namespace shardrun {
namespace {

using Types = std::vector<TensorType>;

Node product(const std::string& name) {
  Node node;
  node.op = "matmul";
  node.name = name;
  node.attrs = {{"equation", std::string("ij,jk->ik")}};
  return node;
}

Types operands(int64_t rows) { return {{DType::f32, {rows, 48}}, {DType::f32, {48, 80}}}; }

TEST(StrategyTable, NodesThatAreAlikeHaveOneList) {
  const Mesh mesh = Mesh::parse("2x2");
  const Cluster cluster = host_cluster();
  StrategyTable table(mesh, cluster);
  const auto of = [&](const Node& node, const Types& in, const SpmdRule& rule, bool leave_empty) {
    const Types out = infer_types(node, in);
    const std::vector<Strategy>& found = table.of(node, in, out, rule, leave_empty);
    const std::vector<Strategy> own =
        enumerate_strategies(node, in, out, rule, mesh, cluster, leave_empty);
    EXPECT_EQ(found.size(), own.size());
    for (size_t s = 0; s < found.size() && s < own.size(); ++s) {
      EXPECT_EQ(found[s].in, own[s].in);
      EXPECT_EQ(found[s].out, own[s].out);
      EXPECT_EQ(found[s].seconds, own[s].seconds);
    }
    return &found;
  };
  const Node a = product("a"), b = product("b");
  const SpmdRule rule = discover(a, operands(64));
  const auto* first = of(a, operands(64), rule, false);
  EXPECT_EQ(of(b, operands(64), rule, false), first);

  Node transposed = a;
  transposed.attrs.set("equation", std::string("ij,jk->ki"));
  SpmdRule fewer = rule;
  fewer.options.pop_back();
  EXPECT_NE(of(a, operands(32), rule, false), first);  // other types
  EXPECT_NE(of(transposed, operands(64), discover(transposed, operands(64)), false), first);
  EXPECT_NE(of(a, operands(64), fewer, false), first);
  EXPECT_NE(of(a, operands(64), rule, true), first);
  EXPECT_EQ(of(a, operands(64), rule, false), first);  // still there
}

TEST(StrategyTable, PlansWithASharedOneAreTheSame) {
  const Graph g = test::perceptron(64, {128, 256, 256, 128});
  const Mesh mesh = Mesh::parse("2x2");
  const Cluster cluster = host_cluster();
  RuleCache rules;
  PlanOptions options;
  const std::string alone = to_json(plan_shardings(g, mesh, cluster, options, rules));
  MeshTables tables(mesh, cluster);
  options.tables = &tables;
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(to_json(plan_shardings(g, mesh, cluster, options, rules)), alone) << time;
}

}  // namespace
}  // namespace shardrun
