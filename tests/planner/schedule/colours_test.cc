// Colours, their ways and conflicts: TOAST's figures 4, 5 and 6, and a GPT of any depth.
#include "planner/schedule/colours.h"

#include <gtest/gtest.h>

#include <map>

#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"
#include "tests/planner/gpt_step.h"
#include "tests/planner/schedule/colours_of.h"

namespace shardrun {
namespace {

using test::colours_of;

Graph figure(const std::string& name) {
  ImportOptions options;
  options.evaluate = run_reference;
  options.has_own_loss = false;
  Graph graph = OnnxFile(str(SHARDRUN_GOLDEN, "/toast_", name, ".onnx")).import(options);
  remove_dead_nodes(graph);
  return graph;
}

/// Dims of one colour, "x.0 y.0 …", for every colour with several dims.
std::set<std::string> names(const Graph& graph, const Colours& colours) {
  std::map<int, std::string> by_colour;
  std::map<int, int> dims;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.values()[v];
    if (value.role == Role::computed && value.producer < 0) continue;
    for (size_t d = 0; d < value.type.shape.size(); ++d) {
      const int colour = colours.of(static_cast<ValueId>(v), d);
      std::string& list = by_colour[colour];
      list += str(list.empty() ? "" : " ", value.name, ".", d);
      ++dims[colour];
    }
  }
  std::set<std::string> out;
  for (const auto& [colour, list] : by_colour) {
    if (dims[colour] > 1) out.insert(list);
  }
  return out;
}

/// Results (or the input) of the nodes in each set, "a b", in order.
std::vector<std::string> sets(const Graph& graph, const Colours& colours) {
  std::vector<std::string> out;
  for (const Colours::Set& set : colours.sets()) {
    std::string list;
    for (int c : set.conflicts) {
      const Conflict& conflict = colours.conflicts()[static_cast<size_t>(c)];
      const ValueId value =
          conflict.node < 0 ? conflict.input : graph.node(conflict.node).outputs[0];
      list += (list.empty() ? "" : " ") + graph.value(value).name;
    }
    out.push_back(list);
  }
  return out;
}

using Names = std::set<std::string>;
using Sets = std::vector<std::string>;

/// Figure 4c: B, X, U and W.
TEST(Colours, OfAPerceptron) {
  const Graph graph = figure("figure4");
  const Colours colours = colours_of(graph);
  EXPECT_EQ(names(graph, colours), (Names{"x.0 %MatMul/y.0 %Relu/z.0 %MatMul/w.0", "x.1 w1.0",
                                          "w1.1 w2.0 %MatMul/y.1 %Relu/z.1", "w2.1 %MatMul/w.1"}));
  EXPECT_TRUE(colours.conflicts().empty());
}

/// Figure 5: S stands twice at a, c and d; b and z take one of the two. One set, two resolutions.
TEST(Colours, OfAttentionInConflict) {
  const Graph graph = figure("figure5");
  const Colours colours = colours_of(graph);
  EXPECT_EQ(names(graph, colours),
            (Names{"x.0 %MatMul/k.0 %MatMul/v.0 %MatMul/q.0 %Transpose/qt.1 %MatMul/a.0 "
                   "%MatMul/a.1 %ReduceSum/b.0 %Expand/c.0 %Expand/c.1 %Div/d.0 %Div/d.1 "
                   "%MatMul/z.0",
                   "x.1 wq.0 wk.0 wv.0", "wq.1 wk.1 %MatMul/k.1 %MatMul/q.1 %Transpose/qt.0",
                   "wv.1 %MatMul/v.1 %MatMul/z.1"}));
  EXPECT_EQ(sets(graph, colours), (Sets{"%MatMul/a %ReduceSum/b %Expand/c %Div/d %MatMul/z"}));
  ASSERT_EQ(colours.sets().size(), 1U);
  EXPECT_EQ(colours.sets()[0].resolutions, 2);
  // Queries are rows of a, so what is summed over rows is a part in this resolution, and what is
  // left in the other: along each, each conflict has another way.
  for (const Conflict& conflict : colours.conflicts()) {
    ASSERT_EQ(conflict.order.size(), 2U);
    EXPECT_NE(conflict.order[0], conflict.order[1]);
  }
  const auto resolved = [&](size_t conflict, size_t resolution) {
    const Conflict& c = colours.conflicts()[conflict];
    const std::vector<int> ways = colours.ways(c.node, c.colour);
    const auto way = static_cast<size_t>(ways[static_cast<size_t>(c.order[resolution])]);
    return to_string(colours.ways(c.node)[way]);
  };
  const size_t rows = resolved(0, 0) == "[S0, -] -> [S0]" ? 0 : 1;
  const Sets by_rows = {"[S0, -] -> [S0]", "[S0] -> [P]", "[-] -> [S0]", "[S0, S0] -> [S0]",
                        "[S0, -] -> [S0]"};
  const Sets by_columns = {"[-, S1] -> [S1]", "[S1] -> [S0]", "[S0] -> [S1]", "[S1, S1] -> [S1]",
                           "[S1, S0] -> [P]"};
  for (size_t c = 0; c < 5; ++c) {
    EXPECT_EQ(resolved(c, rows), by_rows[c]);
    EXPECT_EQ(resolved(c, 1 - rows), by_columns[c]);
  }
}

/// Figure 6: a box is compatible, unless a path goes across from one side to the other.
TEST(Colours, BoxesAndPathsAcross) {
  const auto sets_of = [](const std::string& name) {
    const Graph graph = figure(name);
    return sets(graph, colours_of(graph));
  };
  EXPECT_EQ(sets_of("figure6_left"), (Sets{"%MatMul/a %Exp/b"}));
  EXPECT_EQ(sets_of("figure6_middle"), (Sets{"%MatMul/a %ReduceSum/r", "%Expand/s %Div/e"}));
  EXPECT_EQ(sets_of("figure6_right"),
            (Sets{"%MatMul/a %ReduceSum/r %ReduceSum/u", "%Add/g %Div/e"}));
}

/// x x^T: rows and columns of the result are rows of x.
TEST(Colours, OfAProductWithItself) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {6, 10}}, Role::batch);
  g.outputs = {g.add("matmul", {x, x}, {{"equation", std::string("ik,jk->ij")}}, "y")};
  const Colours colours = colours_of(g);
  EXPECT_EQ(names(g, colours), (Names{"x.0 %y.0 %y.1"}));
  ASSERT_EQ(colours.conflicts().size(), 1U);
  EXPECT_EQ(colours.conflicts()[0].ways, 2);
}

/// A graph's adjacency [N, N] with a residual: an input is in conflict itself.
TEST(Colours, OfAnInputInConflict) {
  Graph g;
  const ValueId adjacency = g.add_input("adjacency", {DType::f32, {6, 6}}, Role::batch);
  const ValueId x = g.add_input("x", {DType::f32, {6, 10}}, Role::batch);
  const ValueId sum =
      g.add("matmul", {adjacency, x}, {{"equation", std::string("nm,mf->nf")}}, "sum");
  g.outputs = {g.add("add", {sum, x}, {}, "y")};
  const Colours colours = colours_of(g);
  EXPECT_EQ(names(g, colours),
            (Names{"adjacency.0 adjacency.1 x.0 %sum.0 %y.0", "x.1 %sum.1 %y.1"}));
  EXPECT_EQ(sets(g, colours), (Sets{"adjacency %sum"}));
}

TEST(Colours, OfAGptOfAnyDepth) {
  std::set<std::pair<size_t, int>> seen;  // groups, digits
  for (int layers : {2, 4, 9}) {
    GptOptions o = test::small();
    o.layers = layers;
    const Graph graph = test::gpt_step(o);
    const Colours colours = colours_of(graph);
    seen.emplace(colours.alike().size(), colours.digits());
    for (const std::vector<int>& group : colours.alike())
      EXPECT_LE(group.size(), static_cast<size_t>(2 * layers + 1));
  }
  EXPECT_EQ(seen, (std::set<std::pair<size_t, int>>{{10, 1}}));
}

}  // namespace
}  // namespace shardrun
