// Tactics: what each adds to a plan, and that such plans train as one rank does.
#include <gtest/gtest.h>

#include "planner/schedule/colours.h"
#include "planner/schedule/demands.h"
#include "planner/schedule/schedule.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::collectives;
using test::gpt_step;
using test::perceptron;
using test::rules;
using test::small;

Plan plan_of(const Graph& graph, const std::string& mesh, const std::vector<std::string>& tactics,
             PlanOptions options = {}, PlanReport* report = nullptr) {
  if (options.planner.kind == PlannerKind::automatic) options.planner = {PlannerKind::propagate};
  options.tactics = tactics;
  PlanReport own;
  const Plan plan = plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules(),
                                   report != nullptr ? report : &own);
  check_plan(plan, graph);
  return plan;
}

std::string layout(const Plan& plan, const std::string& value) {
  return to_string(plan.values.at(value), plan.mesh);
}

std::map<std::string, size_t> counts(const Graph& graph, const Plan& plan) {
  std::map<std::string, size_t> out;
  for (const std::string& c : collectives(graph, plan)) ++out[c.substr(0, c.find(' '))];
  return out;
}

std::string refusal(const Graph& graph, const std::string& mesh,
                    const std::vector<std::string>& tactics, const PlanOptions& options = {}) {
  try {
    (void)plan_of(graph, mesh, tactics, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

/// Copies of one graph by its number of layers, since plans and runs are compared by it.
const Graph& gpt(int layers) {
  static std::map<int, Graph> all;
  if (all.count(layers) == 0) {
    GptOptions options = small();
    options.layers = layers;
    all.emplace(layers, gpt_step(options));
  }
  return all.at(layers);
}

/// PartIR's example: one argument cut and propagated, then another: Megatron's pair of products
/// with one sum.
TEST(Tactics, ArgumentsOneByOne) {
  const Graph g = perceptron(8, {12, 32, 12});
  const auto sums = [&](const Plan& plan, int axis) {
    int count = 0;
    for (const Step& step : Partition(g, plan, host_cluster()).program(0).steps) {
      if (step.kind != Step::Kind::collective || step.source.rfind("%w", 0) != 0) continue;
      count += step.collective->traits().name == "all_reduce" &&
               step.collective->group == plan.mesh.group(0, {axis});
    }
    return count;
  };
  const Plan rows = plan_of(g, "d=2,m=2", {"x.0@d"});
  EXPECT_EQ(layout(rows, "x"), "[{d}, -]");
  EXPECT_EQ(layout(rows, "w0"), "[-, -]");
  EXPECT_EQ(layout(rows, "%w1/matmul"), "[{d}, -]");
  const Plan both = plan_of(g, "d=2,m=2", {"x.0@d", "w0.1@m"});
  EXPECT_EQ(layout(both, "w0"), "[-, {m}]");
  EXPECT_EQ(layout(both, "w1"), "[{m}, -]");
  EXPECT_EQ(layout(both, "%w0/relu"), "[{d}, {m}]");
  EXPECT_EQ(sums(rows, 1), 0);
  EXPECT_EQ(sums(both, 1), 1);
}

/// Of L layers and Q parameters: the batch takes a sum for each gradient, the loss and its count;
/// inner dims 4 L + 2 more and one of the norm's; cut weights make a reduce_scatter of each
/// gradient's sum.
TEST(Tactics, WhatEachAdds) {
  for (const int layers : {2, 3}) {
    const Graph& graph = gpt(layers);
    const size_t q = graph.with_role(Role::parameter).size(), l = static_cast<size_t>(layers);
    const std::string mesh = "data=2,model=2";
    EXPECT_TRUE(counts(graph, plan_of(graph, mesh, {})).empty());
    auto rows = counts(graph, plan_of(graph, mesh, {"batch@data"}));
    EXPECT_EQ(rows, (std::map<std::string, size_t>{{"all_reduce", q + 2}}));
    auto inner = counts(graph, plan_of(graph, mesh, {"batch@data", "inner@model"}));
    EXPECT_EQ(inner["all_reduce"], q + 2 + 4 * l + 2 + 1);
    auto weights =
        counts(graph, plan_of(graph, mesh, {"batch@data", "inner@model", "weights@data"}));
    EXPECT_EQ(weights["reduce_scatter"], q);
    EXPECT_EQ(weights["all_reduce"], inner["all_reduce"] - q + 1);  // the norm's, of both axes
  }
}

/// A baseline is its tactics.
TEST(Tactics, OfBaselines) {
  const Graph& graph = gpt(2);
  const std::map<std::string, std::vector<std::string>> known = {
      {"dp", {"batch@r"}},
      {"zero1", {"batch@r", "state@r"}},
      {"zero2", {"batch@r", "gradients@r"}},
      {"fsdp", {"batch@r", "weights@r"}},
      {"megatron", {"inner@r"}},
      {"megatron-sp", {"inner@r", "sequence@r"}}};
  for (const auto& [name, tactics] : known) {
    PlanOptions options;
    options.planner = parse_planner(name);
    EXPECT_EQ(plan_of(graph, "r=2", tactics).values, plan_of(graph, "r=2", {}, options).values)
        << name;
  }
}

/// As asked along one axis, the best that there is along the other.
TEST(Tactics, AutoLeavesAnAxisToTheSearch) {
  const Graph& graph = gpt(2);
  const std::string mesh = "data=2,model=2";
  const Plan mixed = plan_of(graph, mesh, {"batch@data", "auto@model"});
  EXPECT_EQ(layout(mixed, "tokens").substr(0, 6), "[{data");
  for (const char* other : {"inner@model", "sequence@model", "batch@model"})
    EXPECT_LE(mixed.seconds, plan_of(graph, mesh, {"batch@data", other}).seconds * 1.0001) << other;
  PlanOptions free;
  free.planner = parse_planner("ilp");
  const Plan best = plan_shardings(graph, Mesh::parse(mesh), host_cluster(), free, rules());
  EXPECT_GE(mixed.seconds, best.seconds * 0.9999);
  // Cuts and auto of one axis: what they say holds, the rest is free.
  const Plan rest = plan_of(graph, mesh, {"batch@data", "auto@data", "auto@model"});
  EXPECT_EQ(layout(rest, "tokens").substr(0, 6), "[{data");
  EXPECT_LE(rest.seconds, mixed.seconds * 1.0001);
}

/// No part of a sum lies along an axis that nothing names: nothing is cut there that could be added
/// up. Along the others one may.
TEST(Tactics, AnAxisThatNothingNamesHoldsNoSums) {
  const Graph& graph = gpt(1);
  const Mesh mesh = Mesh::parse("a=2,b=2,c=2");
  const Demands demands(graph, mesh, parse_tactics({"batch@a", "auto@c"}, mesh),
                        rules_of(graph, rules()));
  bool sums = false;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const NodeDemand demand = demands.node(static_cast<NodeId>(n));
    for (const auto* values : {&demand.in, &demand.out}) {
      for (const std::vector<Placements>& masks : *values) {
        sums = sums || (masks[0] & kSummands) != 0;
        EXPECT_EQ(masks[1], kReplicated) << graph.nodes()[n].name;
        EXPECT_EQ(masks[2], kAnyPlacement) << graph.nodes()[n].name;
      }
    }
  }
  EXPECT_TRUE(sums);
}

/// The name of divided axes means all of them, in order.
TEST(Tactics, SubAxes) {
  const Graph& graph = gpt(2);
  const Plan both = plan_of(graph, "r=2*2", {"batch@r"});
  EXPECT_EQ(layout(both, "tokens").substr(0, 10), "[{r.0,r.1}");
  EXPECT_EQ(both.values, plan_of(graph, "r=2*2", {"batch@r.0", "batch@r.1"}).values);
  test::expect_trains_as_one(graph, both);
  const Plan mixed = plan_of(graph, "r=2*2", {"batch@r.0", "inner@r.1"});
  EXPECT_EQ(layout(mixed, "tokens").substr(0, 6), "[{r.0}");
}

/// A node is computed by all ranks whatever else is cut.
TEST(Tactics, NodesByOptionOrWhole) {
  const Graph g = perceptron(8, {12, 32, 12});
  const Plan whole = plan_of(g, "d=2", {"w1/matmul:whole@d", "x.0@d"});
  EXPECT_EQ(layout(whole, "%w0/matmul"), "[{d}, -]");
  EXPECT_TRUE(whole.nodes.at("w1/matmul").in[0].is_replicated());
  EXPECT_TRUE(whole.nodes.at("w1/matmul").out[0].is_replicated());
  const std::vector<std::string> options = {"w0/matmul:0@d", "w0/matmul:1@d", "w0/matmul:2@d"};
  std::set<std::string> ways;
  for (const std::string& option : options)
    ways.insert(
        to_string(plan_of(g, "d=2", {option}).nodes.at("w0/matmul").out[0], Mesh::parse("d=2")));
  EXPECT_EQ(ways, (std::set<std::string>{"[{d}, -]", "[-, {d}]", "[-, -] partial(sum: d)"}));
}

/// Requests are propagated as well: with `--shard` alone all that follows from it is cut.
TEST(Tactics, RequestsArePropagated) {
  const Graph g = perceptron(8, {12, 32, 12});
  PlanOptions options;
  options.requests = {"x=[d,-]"};
  const Plan plan = plan_of(g, "d=2", {}, options);
  EXPECT_EQ(layout(plan, "%w1/matmul"), "[{d}, -]");
  EXPECT_EQ(layout(plan, "w1"), "[-, -]");
}

/// Two requests that meet at one product: each of its ways fits one of them.
TEST(Tactics, AConflictIsSaidOrRefused) {
  const Graph g = perceptron(8, {12, 32, 12});
  PlanOptions options;
  options.requests = {"x=[d,-]", "w0=[-,d]", "%w0/relu=[-,-]"};
  PlanReport report;
  (void)plan_of(g, "d=2", {}, options, &report);
  ASSERT_FALSE(report.unresolved.empty());
  const std::string text = to_string(report.unresolved[0], g, Mesh::parse("d=2"));
  EXPECT_EQ(text.substr(0, text.find(':')), "node 'w0/matmul' (matmul) along axis d");
  EXPECT_NE(text.find("[S0, -] -> [S0]"), std::string::npos) << text;
  EXPECT_NE(text.find("[-, S1] -> [S1]"), std::string::npos) << text;
  options.strict = true;
  const std::string said = refusal(g, "d=2", {}, options);
  EXPECT_NE(said.find("--strict: node 'w0/matmul' (matmul) along axis d"), std::string::npos)
      << said;
}

/// Both sides are named: it is the tactics that leave no way, not the planner.
TEST(Tactics, ContradictRequests) {
  PlanOptions options;
  options.tactics = {"batch@d"};
  options.requests = {"w0=[-,d]"};
  try {
    (void)plan_shardings(perceptron(8, {12, 32, 12}), Mesh::parse("d=2"), host_cluster(), options,
                         rules(), nullptr);
    ADD_FAILURE() << "the tactic lets w0 lie so";
  } catch (const Error& e) {
    const std::string said = e.what();
    EXPECT_NE(said.find("--shard 'w0=[-,d]' and --tactic batch@d contradict"), std::string::npos)
        << said;
    EXPECT_NE(said.find(": the tactics do not let "), std::string::npos) << said;
    EXPECT_NE(said.find("or take another tactic"), std::string::npos) << said;
  }
}

/// However short the search is to be.
TEST(Tactics, SomePlanIsAlwaysLookedFor) {
  PlanOptions options;
  options.solve_seconds = 0;
  EXPECT_GT(plan_shardings(perceptron(8, {12, 32, 12}), Mesh::parse("a=2,b=2"), host_cluster(),
                           options, rules(), nullptr)
                .seconds,
            0);
}

TEST(Tactics, StrictWantsSomethingToPropagate) {
  const Graph g = perceptron(8, {12, 32, 12});
  PlanOptions free;
  free.strict = true;
  try {
    (void)plan_shardings(g, Mesh::parse("d=2"), host_cluster(), free, rules(), nullptr);
    ADD_FAILURE() << "nothing was strict";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("so nothing could stop"), std::string::npos) << e.what();
  }
}

TEST(Tactics, TrainAsOneRankDoes) {
  using List = std::vector<std::string>;
  const Graph& graph = gpt(2);
  for (const char* mesh : {"r=2", "r=3", "r=4"}) {
    for (const List& tactics :
         {List{"tokens.1@r"}, List{"#0@r"}, List{"#1@r/0"}, List{"#1@r/1"}, List{"sequence@r"},
          List{"h.0.mlp.c_fc.weight.1@r", "h.1.attn.c_attn.weight.1@r"}}) {
      SCOPED_TRACE(str(tactics[0], " on ", mesh));
      test::expect_trains_as_one(graph, plan_of(graph, mesh, tactics));
    }
  }
  for (const List& tactics : {List{"batch@a", "inner@b", "weights@a"}, List{"#1@a/1", "inner@b"},
                              List{"tokens.0@a", "auto@b"}, List{"batch@a", "tokens.1@b"}}) {
    SCOPED_TRACE(tactics[0] + " on a=2,b=2");
    test::expect_trains_as_one(graph, plan_of(graph, "a=2,b=2", tactics));
  }
}

/// The two resolutions of attention are two programs.
TEST(Tactics, ResolutionsDiffer) {
  const Graph& graph = gpt(2);
  EXPECT_NE(counts(graph, plan_of(graph, "r=2", {"#1@r/0"})),
            counts(graph, plan_of(graph, "r=2", {"#1@r/1"})));
}

/// State lies as its update makes it: where the mesh does not divide what a tactic cuts (8 over 2,
/// then 4 over 3), and where equal parameters are updated in different shards.
TEST(Tactics, StateLiesAsUpdatesMakeIt) {
  const Graph& graph = gpt(2);
  test::expect_trains_as_one(graph, plan_of(graph, "a=2,b=3", {"#1@a/0", "#1@b/1"}));
  GptOptions options = small();
  options.kv_heads = 1;
  options.norm = GptOptions::Norm::rms;
  options.mlp = GptOptions::Mlp::geglu;
  options.positions = GptOptions::Positions::rotary;
  options.biases = false;
  const Graph mixed = gpt_step(options, {}, true);
  const Plan plan = plan_of(mixed, "a=2", {"batch@a", "wte.weight.1@a"});
  for (const auto& [held, next] : mixed.updates) {
    if (mixed.value(next).role == Role::computed) {
      EXPECT_EQ(layout(plan, mixed.value(held).name), layout(plan, mixed.value(next).name));
    }
  }
}

TEST(Tactics, ErrorsNameTheTactic) {
  const Graph g = perceptron(8, {12, 32, 12});
  const std::map<std::string, std::string> said = {
      {"batch", "--tactic 'batch': wanted TARGET@AXIS"},
      {"@d", "--tactic '@d': wanted TARGET@AXIS"},
      {"batch@x", "--tactic 'batch@x': mesh d=2 has no axis 'x'; it has d"},
      {"nothing@d", "--tactic 'nothing@d': wanted TARGET@AXIS"},
      {"x.7@d", "--tactic 'x.7@d': value 'x' is f32[8, 12], it has no dim 7"},
      {"x.-1@d", "--tactic 'x.-1@d': '-1' is no whole number"},
      {"y.0@d", "--tactic 'y.0@d': no value has that name"},
      {"w0/relu:9@d", "--tactic 'w0/relu:9@d': node 'w0/relu' (relu) has 2 ways to be cut"},
      {"nix:0@d", "--tactic 'nix:0@d': no node has that name"},
      {"#99@d", "--tactic '#99@d': there are groups #0 to #"},
      {"#0@d/", "--tactic '#0@d/': '' behind the axis"},
      {"#0@d/7x", "--tactic '#0@d/7x': '7x' behind the axis"},
      {"x.0@d/1", "--tactic 'x.0@d/1': digits given: 1, sets of conflicts to resolve: 0"},
      {"batch@d/1", "--tactic 'batch@d/1': batch has no conflicts to resolve"},
      {"(.0@d", "--tactic"}};
  for (const auto& [tactic, begin] : said)
    EXPECT_EQ(refusal(g, "d=2", {tactic}).substr(0, begin.size()), begin);
  PlanOptions baseline;
  baseline.planner = parse_planner("dp");
  const std::string both = refusal(g, "d=2", {"batch@d"}, baseline);
  EXPECT_EQ(both.substr(0, 18), "--tactic 'batch@d'") << both;
  EXPECT_EQ(refusal(gpt(2), "d=2", {"#1@d/2"}),
            "--tactic '#1@d/2': digit 2: there are 2 resolutions, 0 to 1");
  const std::string earlier = refusal(g, "d=2", {"x.0@d", "%w0/matmul.1@d"});
  EXPECT_NE(earlier.find("'%w0/matmul'"), std::string::npos) << earlier;
}

}  // namespace
}  // namespace shardrun
