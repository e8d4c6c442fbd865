// Hints, operands and ways: what each form of --shard does under every planner.
#include "planner/hints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/schedule/colours.h"
#include "planner/space/requests.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::rules;

const std::vector<std::string> kPlannersHere = {"ilp", "beam", "propagate"};

struct Made {
  Plan plan;
  std::vector<HintOutcome> hints;
};

Made made(const Graph& graph, const std::string& mesh, const std::vector<std::string>& requests,
          const std::string& planner = "ilp") {
  PlanOptions options;
  options.planner = parse_planner(planner);
  options.requests = requests;
  PlanReport report;
  Made out{plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules(), &report), {}};
  out.hints = report.hints;
  check_plan(out.plan, graph);
  return out;
}

std::string refusal(const Graph& graph, const std::vector<std::string>& requests,
                    const std::string& planner = "ilp") {
  try {
    made(graph, "a=2,b=2", requests, planner);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
  return "it was allowed";
}

std::string layout(const Plan& plan, const std::string& value) {
  return to_string(plan.values.at(value), plan.mesh);
}

std::string read_as(const Plan& plan, const std::string& node, size_t operand) {
  return to_string(plan.nodes.at(node).in.at(operand), plan.mesh);
}

void finish(Graph& g, ValueId x) {
  std::vector<int64_t> axes;
  for (size_t d = 0; d < g.type(x).shape.size(); ++d) axes.push_back(static_cast<int64_t>(d));
  const ValueId square = g.add("mul", {x, x}, {}, "square");
  g.loss = g.add("reduce_sum", {square}, {{"axes", axes}, {"keepdims", int64_t{0}}}, "loss");
  attach_optimizer(g, {});
}

/// The mesh RFC's example: one value, and two users of it.
Graph two_users() {
  Graph g;
  g.name = "two";
  const ValueId x = g.add_input("x", {DType::f32, {16, 12}}, Role::batch);
  const ValueId w = g.add_persistent("w", {DType::f32, {12, 12}}, Role::parameter, Source{});
  g.trainable[w] = true;
  const std::string product = "bi,io->bo";
  const ValueId op0 = g.add("matmul", {x, w}, {{"equation", product}}, "op0");
  const ValueId op1 = g.add("relu", {op0}, {}, "op1"), op2 = g.add("exp", {op0}, {}, "op2");
  finish(g, g.add("add", {op1, op2}, {}, "sum"));
  return g;
}

// ---- hints ----

/// Every sharding of every weight and product as a hint: it is followed and costs nothing, or it is
/// not and forcing it costs exactly its price.
TEST(Hints, AreFollowedForNothingOrPriced) {
  const Graph graph = test::perceptron(64, {48, 96, 48});
  for (const std::string& planner : kPlannersHere) {
    const Plan without = made(graph, "m=2", {}, planner).plan;
    int followed = 0, priced = 0;
    for (const char* value : {"x", "w0", "w1", "w0/matmul", "w0/relu", "w1/matmul"}) {
      for (const char* sharding : {"[m,-]", "[-,m]", "[-,-]"}) {
        const std::string request = str(value, '=', sharding);
        const Made hinted = made(graph, "m=2", {"?" + request}, planner);
        ASSERT_EQ(hinted.hints.size(), 1U);
        const HintOutcome& hint = hinted.hints[0];
        EXPECT_EQ(hint.text, "?" + request);
        EXPECT_LE(hinted.plan.seconds, without.seconds * 1.0001) << planner << ' ' << request;
        const Plan forced = made(graph, "m=2", {request}, planner).plan;
        if (hint.followed) {
          EXPECT_EQ(hinted.plan.values, forced.values) << planner << ' ' << request;
          ++followed;
          continue;
        }
        EXPECT_EQ(hinted.plan.values, without.values) << planner << ' ' << request;
        ASSERT_TRUE(hint.seconds) << planner << ' ' << request << hint.why;
        EXPECT_EQ(*hint.seconds, forced.seconds - without.seconds) << planner << ' ' << request;
        EXPECT_GT(*hint.seconds, 0) << planner << ' ' << request;
        ++priced;
      }
    }
    EXPECT_GT(followed, 0) << planner;
    EXPECT_GT(priced, 0) << planner;
  }
}

/// The first of two that contradict each other is followed, and the other says what is against it.
TEST(Hints, EarlierOnesWin) {
  const Graph graph = two_users();
  for (const std::string& planner : kPlannersHere) {
    const Plan without = made(graph, "a=2,b=2", {}, planner).plan;
    const std::string own = str("?x=", layout(without, "x"));  // costs nothing
    const Made two = made(graph, "a=2,b=2", {own, "?x=[a,b]"}, planner);
    ASSERT_EQ(two.hints.size(), 2U);
    EXPECT_TRUE(two.hints[0].followed) << planner;
    if (layout(without, "x") != "[{a}, {b}]") {
      EXPECT_FALSE(two.hints[1].followed) << planner;
      EXPECT_NE(two.hints[1].why.find("contradict"), std::string::npos) << two.hints[1].why;
      EXPECT_TRUE(two.hints[1].seconds) << planner;
    }
  }
}

/// With many hints the plan takes no longer than without, and whatever is followed holds.
TEST(Hints, ManyAtOnce) {
  const Graph graph = test::perceptron(64, {48, 96, 48});
  const Plan without = made(graph, "a=2,b=2", {}).plan;
  const std::vector<std::string> texts = {"?x=[a,-]",      "?w0=[-,b]",         "?w1=[b,-]",
                                          "?x=[b,-]",      "?w0/relu=[a,b]",    "?w1/matmul=[-,-]",
                                          "?target=[-,b]", "?w0/matmul=[-,a+b]"};
  const Made many = made(graph, "a=2,b=2", texts);
  EXPECT_LE(many.plan.seconds, without.seconds * 1.0001);
  size_t followed = 0;
  for (size_t h = 0; h < texts.size(); ++h) {
    EXPECT_EQ(many.hints[h].text, texts[h]);
    const Request request = find_request(texts[h], graph, many.plan.mesh);
    EXPECT_EQ(many.hints[h].followed, follows(many.plan, graph, request)) << texts[h];
    followed += many.hints[h].followed;
  }
  EXPECT_LT(followed, texts.size());
  test::expect_losses_of_one(graph, many.plan);
}

/// Of very many some groups are tried as they are, so that planning does not take forever.
TEST(Hints, OfAWholeModel) {
  const Graph graph = test::perceptron(64, std::vector<int64_t>(25, 32));
  PlanOptions options;
  for (int layer = 0; layer < 24; ++layer) {
    for (const char* sharding : {"[-,m]", "[m,-]", "[-,-]"})
      options.requests.push_back(str("?w", layer, "=", sharding));
  }
  int plans = 0;
  PlanReport report;
  const Mesh mesh = Mesh::parse("m=2");
  const PlanUnder plan_under = [&](const PlanOptions& under, PlanReport& its) {
    ++plans;
    return plan_shardings(graph, mesh, host_cluster(), under, rules(), &its);
  };
  const Plan plan = plan_with_hints(graph, mesh, options, plan_under, report);
  EXPECT_LE(plans, 1 + 2 * kMostSplits + 1 + kMostPrices);
  EXPECT_EQ(report.hints.size(), 72U);
  EXPECT_LE(plan.seconds, made(graph, "m=2", {}).plan.seconds * 1.0001);
  int priced = 0;
  for (const HintOutcome& hint : report.hints) {
    EXPECT_EQ(hint.followed, follows(plan, graph, find_request(hint.text, graph, mesh)))
        << hint.text;
    priced += hint.seconds.has_value();
  }
  EXPECT_EQ(priced, kMostPrices);
}

/// Hints never contradict what is required; they are refused only where they are no requests.
TEST(Hints, YieldToRequests) {
  const Graph graph = two_users();
  const Made both = made(graph, "a=2,b=2", {"w=[a,-]", "?w=[-,b]"});
  EXPECT_EQ(layout(both.plan, "w"), "[{a}, -]");
  EXPECT_FALSE(both.hints[0].followed);
  EXPECT_FALSE(both.hints[0].seconds);
  EXPECT_NE(both.hints[0].why.find("--shard 'w=[a,-]' and --shard 'w=[-,b]' contradict"),
            std::string::npos)
      << both.hints[0].why;
  EXPECT_EQ(refusal(graph, {"?v=[a,-]"}),
            "--shard '?v=[a,-]': no value's whole name matches; near are 'adam_v/w', 'w', 'x'");
  EXPECT_EQ(refusal(graph, {"?w=[a]"}),
            "--shard '?w=[a]': names 1 dims, value 'w' is f32[12, 12]; give each of its 2 dims an "
            "axis or -");
}

// ---- operands ----

TEST(Operands, TwoUsersOfOneValue) {
  const Graph graph = two_users();
  const std::vector<std::string> requests = {"op0=[a,b]", "op0>op1=[a,-]", "op0>op2=[b,-]"};
  for (const std::string& planner : kPlannersHere) {
    const Plan plan = made(graph, "a=2,b=2", requests, planner).plan;
    EXPECT_EQ(layout(plan, "%op0"), "[{a}, {b}]") << planner;
    EXPECT_EQ(read_as(plan, "op1", 0), "[{a}, -]") << planner;
    EXPECT_EQ(read_as(plan, "op2", 0), "[{b}, -]") << planner;
    std::set<std::string> targets;  // of what is made of op0 for its readers
    for (const Step& step : Partition(graph, plan, host_cluster()).program(0).steps) {
      if (step.kind == Step::Kind::collective && step.source.find("op0") != std::string::npos)
        targets.insert(str(step.source, step.out[0]));
    }
    EXPECT_GE(targets.size(), 2U) << planner;
    test::expect_losses_of_one(graph, plan);
  }
}

TEST(Operands, AreRefused) {
  const Graph graph = two_users();
  EXPECT_EQ(refusal(graph, {"op0>op9=[a,-]"}),
            "--shard 'op0>op9=[a,-]': no node's whole name matches; near are 'op0', 'op1', 'op2'");
  EXPECT_EQ(refusal(graph, {"w>op1=[a,-]"}),
            "--shard 'w>op1=[a,-]': no operand's whole name matches: node 'op1' reads '%op0'");
  EXPECT_EQ(refusal(graph, {"op0>op1=[a,-]", "op0>op1=[-,b]"}),
            "--shard 'op0>op1=[a,-]' and --shard 'op0>op1=[-,b]' contradict at node 'op1', which "
            "reads '%op0' [{a}, -] and [-, {b}]; leave out one of the two");
  EXPECT_EQ(refusal(graph, {"op0>op1=[a,-]", "op1=[-,b]"}),
            "--shard 'op1=[-,b]' and --shard 'op0>op1=[a,-]' contradict at node 'op1' (relu): it "
            "cannot leave '%op1' [-, {b}] and read '%op0' [{a}, -] at once; leave out one of the "
            "two");
  EXPECT_NE(refusal(graph, {"op0>op1=[-,-] partial(sum: a)"})
                .find("node 'op1' (relu) cannot read '%op0' [-, -] partial(sum: a); it can read"),
            std::string::npos);
}

// ---- ways of nodes ----

/// The number of the way of a node that leaves its first result so.
int way_of(const Graph& graph, const std::string& name, int out) {
  const Colours colours(graph, [&](NodeId n) -> const SpmdRule& {
    return rules().rule(graph.node(n), graph.types(graph.node(n).inputs));
  });
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (graph.nodes()[n].name != name) continue;
    const auto ways = colours.ways(static_cast<NodeId>(n));
    for (size_t w = 0; w < ways.size(); ++w) {
      if (ways[w].out[0] == out) return static_cast<int>(w);
    }
  }
  ADD_FAILURE() << "no such way of " << name;
  return 0;
}

/// "node()=[-,m]": way 1 along m.
std::string cut_by(const std::string& node, int way, const std::string& axis) {
  std::string out = node + "()=[";
  for (int w = 0; w < way; ++w) out += "-,";
  return out + axis + "]";
}

TEST(Ways, OfNodes) {
  const Graph graph = test::perceptron(64, {48, 96, 48});
  for (const std::string& planner : kPlannersHere) {
    const Plan sum =
        made(graph, "m=2", {cut_by("w0/matmul", way_of(graph, "w0/matmul", Way::kPartial), "m")},
             planner)
            .plan;
    EXPECT_EQ(read_as(sum, "w0/matmul", 0), "[-, {m}]") << planner;
    EXPECT_EQ(read_as(sum, "w0/matmul", 1), "[{m}, -]") << planner;
    EXPECT_EQ(layout(sum, "%w0/matmul"), "[-, -] partial(sum: m)") << planner;
    test::expect_losses_of_one(graph, sum);
    const Plan whole = made(graph, "m=2", {"w0/matmul()=[-]"}, planner).plan;
    EXPECT_EQ(read_as(whole, "w0/matmul", 0), "[-, -]") << planner;
    EXPECT_EQ(layout(whole, "%w0/matmul"), "[-, -]") << planner;
  }
}

TEST(Ways, AreRefused) {
  const Graph graph = two_users();
  EXPECT_EQ(refusal(graph, {"op1()=[-,-,a]"}),
            "--shard 'op1()=[-,-,a]': names 3 ways, node 'op1' (relu) can be cut in 2, as "
            "shardrun rules lists");
  EXPECT_EQ(refusal(graph, {"op9()=[a]"}),
            "--shard 'op9()=[a]': no node's whole name matches; near are 'op0', 'op1', 'op2'");
  EXPECT_EQ(refusal(graph, {"op1()=[a]", "op.()=[b]"}),
            "--shard 'op1()=[a]' and --shard 'op.()=[b]' contradict at node 'op1'; leave out one "
            "of the two");
  const std::string columns = cut_by("op1", way_of(graph, "op1", 1), "a");
  EXPECT_EQ(refusal(graph, {columns, "op1=[a,-]"}),
            "--shard 'op1=[a,-]' and --shard '" + columns +
                "' contradict at node 'op1' (relu): it cannot leave '%op1' [{a}, -] and be cut in "
                "those ways at once; leave out one of the two");
}

/// A hint on a node is followed, or priced, as one on a value is.
TEST(Ways, AsHints) {
  const Graph graph = test::perceptron(64, {48, 96, 48});
  const Plan without = made(graph, "m=2", {}).plan;
  int followed = 0;
  std::vector<std::string> requests = {"w1/matmul()=[-]"};
  for (const int out : {0, 1, int{Way::kPartial}})
    requests.push_back(cut_by("w1/matmul", way_of(graph, "w1/matmul", out), "m"));
  for (const std::string& request : requests) {
    const Made hinted = made(graph, "m=2", {"?" + request});
    const Plan forced = made(graph, "m=2", {request}).plan;
    followed += hinted.hints[0].followed;
    if (!hinted.hints[0].followed) {
      EXPECT_EQ(*hinted.hints[0].seconds, forced.seconds - without.seconds) << request;
    }
  }
  EXPECT_GT(followed, 0);
}

/// A hint that is followed already may stand in the way of a faster plan with another one.
TEST(Hints, AreFollowedWhereTheySaveTime) {
  Graph graph;
  for (const char* name : {"x", "y"}) graph.add_input(name, {DType::f32, {4, 4}}, Role::batch);
  graph.outputs = {graph.add("add", {graph.find("x"), graph.find("y")}, {}, "sum")};
  const Mesh mesh = Mesh::parse("a=2");
  PlanOptions options;
  options.requests = {"?x=[a,-]", "?y=[a,-]"};
  const auto planned = [&](const PlanOptions& under, PlanReport&) {
    const std::vector<std::string>& asked = under.requests;
    const auto has = [&](const char* text) {
      return std::find(asked.begin(), asked.end(), text) != asked.end();
    };
    Plan plan;
    plan.mesh = mesh;
    plan.seconds = has("x=[a,-]") && has("y=[a,-]") ? 11 : has("y=[a,-]") ? 9 : 10;
    const bool of_x = !has("y=[a,-]") || has("x=[a,-]");
    plan.values["x"] = parse_sharding(of_x ? "[a,-]" : "[-,-]", mesh);
    plan.values["y"] = parse_sharding(has("y=[a,-]") ? "[a,-]" : "[-,-]", mesh);
    return plan;
  };
  PlanReport report;
  EXPECT_EQ(plan_with_hints(graph, mesh, options, planned, report).seconds, 9);
  ASSERT_EQ(report.hints.size(), 2u);
  EXPECT_FALSE(report.hints[0].followed);
  EXPECT_TRUE(report.hints[1].followed);
}

}  // namespace
}  // namespace shardrun
