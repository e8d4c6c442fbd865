// Propagation: from what is cut at one place to how each node is cut, in any order of nodes.
#include "planner/schedule/propagate.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/planner/gpt_step.h"
#include "tests/planner/schedule/colours_of.h"

namespace shardrun {
namespace {

using test::colours_of;
using test::gpt_step;

/// y = relu(x w1) w2.
Graph perceptron() {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {6, 10}}, Role::batch);
  const auto weight = [&](const char* name, Shape shape) {
    return g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, Source{});
  };
  const ValueId w1 = weight("w1", {10, 14}), w2 = weight("w2", {14, 4});
  const std::string product = "bi,io->bo";
  const ValueId h = g.add("matmul", {x, w1}, {{"equation", product}}, "h");
  const ValueId r = g.add("relu", {h}, {}, "r");
  g.outputs = {g.add("matmul", {r, w2}, {{"equation", product}}, "y")};
  return g;
}

ValueId value(const Graph& graph, const std::string& name) {
  for (const std::string& candidate : {name, "%" + name}) {
    if (const ValueId id = graph.find(candidate); id != kNoValue) return id;
  }
  ADD_FAILURE() << "no value " << name;
  return 0;
}

NodeId node(const Graph& graph, const std::string& name) {
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (graph.nodes()[n].name == name) return static_cast<NodeId>(n);
  }
  ADD_FAILURE() << "no node " << name;
  return 0;
}

/// "[S0, -] -> [S0]", or "open" or "whole".
std::string way(const Graph& graph, const Colours& colours, const Propagation& p,
                const std::string& name) {
  const NodeId id = node(graph, name);
  const int way = p.way(id);
  return way == Propagation::kOpen    ? "open"
         : way == Propagation::kWhole ? "whole"
                                      : to_string(colours.ways(id)[static_cast<size_t>(way)]);
}

TEST(Propagation, FollowsRowsForwards) {
  const Graph g = perceptron();
  const Colours colours = colours_of(g);
  Propagation p(g, colours);
  EXPECT_TRUE(p.cut(value(g, "x"), 0));
  p.run();
  EXPECT_EQ(way(g, colours, p, "h"), "[S0, -] -> [S0]");
  EXPECT_EQ(way(g, colours, p, "r"), "[S0] -> [S0]");
  EXPECT_EQ(way(g, colours, p, "y"), "[S0, -] -> [S0]");
  EXPECT_TRUE(p.unresolved().empty());
}

TEST(Propagation, FollowsAResultBackwards) {
  const Graph g = perceptron();
  const Colours colours = colours_of(g);
  Propagation p(g, colours);
  EXPECT_TRUE(p.cut(value(g, "y"), 0));
  p.run();
  EXPECT_EQ(way(g, colours, p, "h"), "[S0, -] -> [S0]");
  EXPECT_EQ(p.dim(value(g, "x")), 0);
}

/// Megatron's pair of products from one cut weight: by columns, then a sum over rows.
TEST(Propagation, FollowsColumnsIntoASum) {
  const Graph g = perceptron();
  const Colours colours = colours_of(g);
  Propagation p(g, colours);
  EXPECT_TRUE(p.cut(value(g, "w1"), 1));
  p.run();
  EXPECT_EQ(way(g, colours, p, "h"), "[-, S1] -> [S1]");
  EXPECT_EQ(way(g, colours, p, "y"), "[S1, S0] -> [P]");
  EXPECT_EQ(p.dim(value(g, "w2")), 0);
}

TEST(Propagation, StopsWhereTwoWaysFitAlike) {
  const Graph g = perceptron();
  const Colours colours = colours_of(g);
  Propagation p(g, colours);
  EXPECT_TRUE(p.cut(value(g, "x"), 0));
  EXPECT_TRUE(p.cut(value(g, "w1"), 1));
  p.run();
  EXPECT_EQ(way(g, colours, p, "h"), "open");
  const auto left = p.unresolved();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].first, node(g, "h"));
  std::set<std::string> ways;
  for (int w : left[0].second)
    ways.insert(to_string(colours.ways(left[0].first)[static_cast<size_t>(w)]));
  EXPECT_EQ(ways, (std::set<std::string>{"[S0, -] -> [S0]", "[-, S1] -> [S1]"}));
}

/// What is known first stays: the second cut finds the products taken.
TEST(Propagation, EarlierBeforeLater) {
  const Graph g = perceptron();
  const Colours colours = colours_of(g);
  Propagation p(g, colours);
  EXPECT_TRUE(p.cut(value(g, "x"), 0));
  p.run();
  EXPECT_TRUE(p.cut(value(g, "w1"), 1));  // it lies so, and is gathered
  EXPECT_FALSE(p.cut(value(g, "h"), 1));
  p.run();
  EXPECT_EQ(way(g, colours, p, "h"), "[S0, -] -> [S0]");
  EXPECT_EQ(p.dim(value(g, "w2")), Propagation::kOpen);
}

/// The same nodes in another order that can be run.
Graph reordered(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Node> left = graph.nodes(), order;
  std::set<ValueId> there;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].producer < 0) there.insert(static_cast<ValueId>(v));
  }
  while (!left.empty()) {
    std::vector<size_t> ready;
    for (size_t n = 0; n < left.size(); ++n) {
      if (std::all_of(left[n].inputs.begin(), left[n].inputs.end(),
                      [&](ValueId id) { return there.count(id) > 0; }))
        ready.push_back(n);
    }
    const size_t chosen = ready[random() % ready.size()];
    there.insert(left[chosen].outputs.begin(), left[chosen].outputs.end());
    order.push_back(std::move(left[chosen]));
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  Graph out = graph;
  out.set_nodes(std::move(order));
  return out;
}

/// Every value's dim after propagation from `cuts`, "value.dim", and the ways of all nodes.
std::map<std::string, std::string> fixpoint(const Graph& graph,
                                            const std::vector<std::pair<std::string, int>>& cuts) {
  const Colours colours = colours_of(graph);
  Propagation p(graph, colours);
  for (const auto& [name, dim] : cuts) EXPECT_TRUE(p.cut(value(graph, name), dim)) << name;
  p.run();
  std::map<std::string, std::string> out;
  for (size_t v = 0; v < graph.values().size(); ++v)
    out[graph.values()[v].name] = str(p.dim(static_cast<ValueId>(v)));
  for (const Node& node : graph.nodes())
    out["node " + node.name] = way(graph, colours, p, node.name);
  for (const auto& [id, ways] : p.unresolved())
    out["open " + graph.node(id).name] = str(ways.size());
  return out;
}

TEST(Propagation, OrderOfNodesDoesNotMatter) {
  const Graph graph = test::gpt_step(test::small());
  using Cuts = std::vector<std::pair<std::string, int>>;
  for (const Cuts& cuts : {Cuts{{"tokens", 0}}, Cuts{{"h.0.mlp.c_fc.weight", 1}},
                           Cuts{{"tokens", 0}, {"h.1.attn.c_attn.weight", 1}}, Cuts{{"tokens", 1}},
                           Cuts{{"wte.weight", 0}, {"h.0.Add_2", 1}}}) {
    const auto wanted = fixpoint(graph, cuts);
    for (uint64_t seed = 0; seed < 10; ++seed)
      EXPECT_EQ(fixpoint(reordered(graph, seed), cuts), wanted) << cuts[0].first << ' ' << seed;
  }
}

/// Given how one side of a node lies, it takes a way that leaves (or takes) it so, or says which
/// ways it cannot choose between. Of every op, sample and way.
TEST(Propagation, OneSideGivesTheWay) {
  size_t taken = 0, stopped = 0;
  std::set<std::string> whole;  // have no way at all
  for (const OpDef* def : all_ops()) {
    size_t ways = 0;
    for (const OpDef::Sample& sample : def->samples) {
      Graph g;
      std::vector<ValueId> in;
      for (size_t k = 0; k < sample.in.size(); ++k)
        in.push_back(g.add_input(str("in", k), sample.in[k], Role::batch));
      g.outputs = g.add_node(def->name, in, sample.attrs, "node");
      const Colours colours = colours_of(g);
      ways += colours.ways(0).size();
      for (const Way& given : colours.ways(0)) {
        for (const bool results : {true, false}) {
          Propagation p(g, colours);
          const std::vector<int>& sides = results ? given.out : given.in;
          const std::vector<ValueId>& values = results ? g.outputs : in;
          bool any = false;
          for (size_t s = 0; s < sides.size(); ++s) {
            if (sides[s] == Way::kWhole || (!results && sides[s] < 0)) continue;
            any = true;
            EXPECT_TRUE(p.cut(values[s], sides[s])) << def->name << ' ' << to_string(given);
          }
          if (!any) continue;
          p.run();
          std::vector<int> fit = {p.way(0)};
          if (p.way(0) < 0) {
            const auto left = p.unresolved();
            ASSERT_EQ(left.size(), 1U) << def->name << ' ' << to_string(given);
            fit = left[0].second;
          }
          (fit.size() == 1 ? taken : stopped) += 1;
          for (int w : fit) {
            const Way& way = colours.ways(0)[static_cast<size_t>(w)];
            for (size_t s = 0; s < sides.size(); ++s) {
              if (sides[s] < 0) continue;
              EXPECT_EQ((results ? way.out : way.in)[s], sides[s])
                  << def->name << ' ' << to_string(given) << " became " << to_string(way);
            }
          }
        }
      }
    }
    if (ways == 0) whole.insert(def->name);
  }
  EXPECT_GT(taken, stopped);
  // Of programs alone: rows that a rank counts, weights in blocks.
  EXPECT_EQ(whole,
            (std::set<std::string>{"adamw_packed", "group_rows", "pack_weights", "sgd_packed"}));
}

}  // namespace
}  // namespace shardrun
