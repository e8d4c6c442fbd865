// Which numbers are known, how many rows they exchange, and when that is the cheapest.
#include "planner/rules/numbered_rows.h"

#include <gtest/gtest.h>

#include "graph/optimizer.h"
#include "planner/planner.h"

namespace shardrun {
namespace {

TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }

/// Rows `numbers` of a table of 10 rows.
struct Reader {
  Graph graph;
  const Node& node() const { return graph.nodes().back(); }
};

InputContents numbers_are(std::vector<int64_t> values) {
  return [values](const std::string&) { return std::optional(Tensor::vector_i64(values)); };
}

NodePlan cut_by_rows(const Mesh& mesh) {
  NodePlan plan{{parse_sharding("[{e}, -]", mesh), parse_sharding("[{e}]", mesh)},
                {parse_sharding("[{e}, -]", mesh)}};
  plan.rows = {{{false, 0, 0}, {false, 1, 0}, ReduceOp::sum, 0, 0}};
  return plan;
}

/// Numbers 0, 2, 5, 2, 5, 7, 4 over two ranks are 0, 2, 5, 2 and 5, 7, 4, the rows 0 … 4 and 5 … 9:
/// each rank names one row of the other. Over three they are 0, 2, 5 and 2, 5, 7 and 4, the rows
/// 0 … 3, 4 … 7 and 8, 9: each names one row of another, two of which are the second rank's.
TEST(NumberedRows, CountsWhatChangesRanks) {
  Reader r;
  const ValueId table = r.graph.add_input("table", f32({10, 3}), Role::batch),
                numbers = r.graph.add_input("numbers", {DType::i64, {7}}, Role::batch);
  r.graph.add("gather", {table, numbers}, {{"axis", int64_t{0}}});
  const InputContents contents = numbers_are({0, 2, 5, 2, 5, 7, 4});
  for (const auto& [ranks, named, owned] :
       {std::tuple{"e=2", 1, 1}, std::tuple{"e=3", 1, 2}, std::tuple{"e=7", 1, 2}}) {
    const Mesh mesh = Mesh::parse(ranks);
    NumberedRows rows(r.graph, contents);
    ASSERT_TRUE(rows.of(r.node()).has_value());
    NodePlan plan = cut_by_rows(mesh);
    rows.count(r.node(), mesh, plan);
    EXPECT_EQ(plan.rows[0].most_named, named) << ranks;
    EXPECT_EQ(plan.rows[0].most_owned, owned) << ranks;
  }
}

TEST(NumberedRows, NumbersFollowFromInputsAndConstants) {
  Reader r;
  const ValueId table = r.graph.add_input("table", f32({10, 3}), Role::batch),
                edges = r.graph.add_input("edges", {DType::i64, {2, 4}}, Role::batch),
                second = r.graph.add_constant("one", Tensor::scalar_i64(1)),
                targets = r.graph.add("gather", {edges, second}, {{"axis", int64_t{0}}});
  r.graph.add("gather", {table, targets}, {{"axis", int64_t{0}}});
  const InputContents contents = [](const std::string& input) {
    return input == "edges"
               ? std::optional(Tensor::from(
                     Shape{2, 4}, std::vector<int64_t>{9, 9, 9, 9, 0, 1, 8, 9}, DType::i64))
               : std::nullopt;
  };
  NumberedRows rows(r.graph, contents);
  ASSERT_TRUE(rows.of(r.node()).has_value());
  const Mesh mesh = Mesh::parse("e=2");
  NodePlan plan = cut_by_rows(mesh);
  rows.count(r.node(), mesh, plan);  // 0, 1 and 8, 9: all at home, unlike the sources
  EXPECT_EQ(plan.rows[0].most_named, 0);

  const InputContents none;
  EXPECT_FALSE(NumberedRows(r.graph, none).of(r.node()).has_value());
  const InputContents other = numbers_are({1, 2});  // of another shape than the input
  EXPECT_FALSE(NumberedRows(r.graph, other).of(r.node()).has_value());
}

/// What depends on a weight is not known, whatever the inputs hold.
TEST(NumberedRows, NumbersThatAreLearntAreUnknown) {
  Reader r;
  const ValueId table = r.graph.add_input("table", f32({10, 3}), Role::batch);
  const ValueId weight = r.graph.add_persistent("w", f32({7}), Role::parameter, Source{});
  const ValueId numbers = r.graph.add("cast", {weight}, {{"to", std::string("i64")}});
  r.graph.add("gather", {table, numbers}, {{"axis", int64_t{0}}});
  const InputContents contents = numbers_are({0, 2, 5, 2, 5, 7, 4});
  EXPECT_FALSE(NumberedRows(r.graph, contents).of(r.node()).has_value());
}

/// A layer of a graph network: every node sums its neighbours' w x. Much arithmetic for each node
/// and edge, so all is best cut along these.
constexpr int64_t kNodes = 4096, kEdges = 8 * kNodes, kWidth = 64;

Graph layer() {
  Graph g;
  g.name = "layer";
  const ValueId x = g.add_input("x", f32({kNodes, kWidth}), Role::batch),
                sources = g.add_input("sources", {DType::i64, {kEdges}}, Role::batch),
                targets = g.add_input("targets", {DType::i64, {kEdges}}, Role::batch);
  ValueId y = x;
  for (const char* name : {"w1", "w2"}) {
    Source source;
    source.kind = Source::Kind::normal;
    source.b = 0.02;
    source.stream = name;
    const ValueId w = g.add_persistent(name, f32({kWidth, kWidth}), Role::parameter, source);
    g.trainable[w] = true;
    y = g.add("matmul", {y, w}, {{"equation", std::string("ni,io->no")}});
    y = g.add("gather", {y, sources}, {{"axis", int64_t{0}}});
    y = g.add("gather_grad", {y, targets},
              {{"axis", int64_t{0}}, {"size", kNodes}, {"offset", int64_t{0}}});
    y = g.add("tanh", {y});
  }
  g.loss = g.add("reduce_sum", {g.add("mul", {y, y})},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
  attach_optimizer(g, {.kind = OptimizerKind::sgd});
  return g;
}

/// Edge e goes to node e / 8 from one of the nodes next to it, or from anywhere.
InputContents edges(bool near) {
  return [near](const std::string& input) {
    std::vector<int64_t> out;
    for (int64_t e = 0; e < kEdges; ++e) {
      const int64_t target = e / 8, source = near ? target + e % 8 - 4 : e * 7919 % kNodes;
      out.push_back(input == "targets" ? target : (source + kNodes) % kNodes);
    }
    return input == "x" ? std::nullopt : std::optional(Tensor::vector_i64(out));
  };
}

int exchanges(const Plan& plan, bool results) {
  int count = 0;
  for (const auto& [name, node] : plan.nodes) {
    for (const Rows& rows : node.rows) count += rows.of.result == results ? 1 : 0;
  }
  return count;
}

TEST(NumberedRows, ThePlannerExchangesRowsOfNeighbours) {
  const Graph g = layer();
  const Mesh mesh = Mesh::parse("4");
  Cluster cluster;
  cluster.flops = {{DType::f32, {50e9}}};
  RuleCache rules;
  const auto plan_of = [&](InputContents contents) {
    PlanOptions options;
    options.contents = std::move(contents);
    Plan plan = plan_shardings(g, mesh, cluster, options, rules);
    check_plan(plan, g);
    return plan;
  };
  const Plan unknown = plan_of(nullptr), near = plan_of(edges(true)), far = plan_of(edges(false));
  EXPECT_EQ(exchanges(unknown, true) + exchanges(unknown, false), 0);
  EXPECT_GT(exchanges(near, true), 0);
  EXPECT_GT(exchanges(near, false), 0);
  EXPECT_LT(near.seconds, 0.95 * unknown.seconds);
  EXPECT_LE(far.seconds, unknown.seconds * (1 + 1e-4));  // what is offered besides is not worse
  // What a saved plan says of its rows is what is read back.
  EXPECT_EQ(plan_from_json(to_json(near), "near").nodes, near.nodes);
}

/// Over four axes strategies come from meshes of fewer, whose shards are others where sizes do not
/// divide: rows are counted anew.
TEST(NumberedRows, FourAxes) {
  const Graph g = layer();
  const Mesh mesh = Mesh::parse("2x2x3x2");
  Cluster cluster;
  cluster.flops = {{DType::f32, {50e9}}};
  RuleCache rules;
  PlanOptions options;
  options.contents = edges(true);
  const Plan plan = plan_shardings(g, mesh, cluster, options, rules);
  check_plan(plan, g);
  EXPECT_GT(exchanges(plan, true) + exchanges(plan, false), 0);
  NumberedRows numbered(g, options.contents);
  for (const Node& node : g.nodes()) {
    if (!numbered.of(node)) continue;
    NodePlan counted = plan.nodes.at(node.name);
    for (Rows& rows : counted.rows) rows.most_named = rows.most_owned = 0;
    numbered.count(node, mesh, counted);
    for (size_t i = 0; i < counted.rows.size(); ++i) {
      const Rows& known = plan.nodes.at(node.name).rows[i];
      EXPECT_LE(counted.rows[i].most_named, known.most_named) << node.name;
      EXPECT_LE(counted.rows[i].most_owned, known.most_owned) << node.name;
    }
  }
}

}  // namespace
}  // namespace shardrun
