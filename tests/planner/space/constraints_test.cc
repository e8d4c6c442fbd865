// Requests for shardings: what they do to a plan, and every way in which they are refused.
#include "planner/space/constraints.h"

#include <gtest/gtest.h>

#include "graph/passes/recompute.h"
#include "planner/planner.h"
#include "tests/planner/perceptron.h"

namespace shardrun {
namespace {

/// Two layers.
Graph mlp(int64_t batch = 16, int64_t width = 12) {
  return test::perceptron(batch, {width, width, width});
}

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

Plan plan_of(const Graph& graph, const std::vector<std::string>& requests,
             const std::string& planner = "auto", const std::string& mesh = "data=2,model=2") {
  PlanOptions options;
  options.planner = parse_planner(planner);
  options.requests = requests;
  const Plan plan = plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules());
  check_plan(plan, graph);
  return plan;
}

std::string layout(const Plan& plan, const std::string& value) {
  return to_string(plan.values.at(value), plan.mesh);
}

std::string refusal(const std::vector<std::string>& requests, const std::string& planner = "auto",
                    const std::string& mesh = "data=2,model=2") {
  try {
    plan_of(mlp(), requests, planner, mesh);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
  return "it was allowed";
}

TEST(Requests, PinAnyValue) {
  const Plan plan =
      plan_of(mlp(), {"w0=[-,data+model]", "w1/.atmul=[model,data]", "x=[batch{model}, -]",
                      "adam_m/w1=[{data},{model}]", "matmul_2=[-,-] partial(sum: data)"});
  EXPECT_EQ(layout(plan, "w0"), "[-, {data,model}]");
  EXPECT_EQ(layout(plan, "%w1/matmul"), "[{model}, {data}]");
  EXPECT_EQ(layout(plan, "x"), "[{model}, -]");
  EXPECT_EQ(layout(plan, "adam_m/w1"), "[{data}, {model}]");
  EXPECT_EQ(layout(plan, "w1"), "[{data}, {model}]");  // they are updated together
  EXPECT_EQ(layout(plan, "%matmul_2"), "[-, -] partial(sum: data)");
}

/// ZeRO: the state is cut where the parameter is whole, and the update's result gathered. The
/// products that make gradients are cut as the batch is.
TEST(Requests, StateInSmallerPartsThanItsParameter) {
  const std::vector<std::string> zero = {"w.=[-,-]", "adam_[mv]/w.=[data,-]"};
  std::vector<std::string> as_the_batch = zero;
  for (const char* one : {"x=[data,-]", "w0>w0/matmul=[-,-]", "w1>w1/matmul=[-,-]"})
    as_the_batch.emplace_back(one);
  for (const auto& [requests, planner] :
       {std::pair(zero, "auto"), std::pair(as_the_batch, "propagate")}) {
    const Plan plan = plan_of(mlp(), requests, planner, "data=2");
    EXPECT_EQ(layout(plan, "w0"), "[-, -]") << planner;
    EXPECT_EQ(layout(plan, "adam_v/w1"), "[{data}, -]") << planner;
    EXPECT_EQ(to_string(plan.nodes.at("update/w1").out[0], plan.mesh), "[{data}, -]") << planner;
  }
  const Graph graph = mlp();
  const Plan plan = plan_of(graph, as_the_batch, "propagate", "data=2");
  int gradients = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op != "adamw") continue;
    for (ValueId in : node.inputs) {
      const Value& value = graph.value(in);
      if (value.role != Role::computed || value.type.shape.empty()) continue;
      EXPECT_EQ(layout(plan, value.name), "[-, -] partial(sum: data)");
      ++gradients;
    }
  }
  EXPECT_EQ(gradients, 2);
}

/// Copies of a weight that is held in parts: made anew for each reader, or shared; from the nearest
/// or from one that lies so. Under any planner.
TEST(Requests, HowCopiesAreMade) {
  // A node may read what is held as summands, of which all but one are zero.
  const Request summands =
      find_request("w0>w0/matmul=[-,-] partial(sum: data)", mlp(), Mesh::parse("data=2"));
  EXPECT_EQ(summands.lies.at(0).sharding.partial.size(), 1U);
  const std::vector<std::string> held = {"x=[data,-]", "w1=[data,-]", "w1>.*matmul.*=[-,-]"};
  const auto with = [&](const std::string& planner, const std::string& more) {
    std::vector<std::string> requests = held;
    requests.push_back(more);
    return plan_of(mlp(), requests, planner, "data=2");
  };
  for (const char* planner : {"auto", "ilp", "propagate"}) {
    const Plan anew = with(planner, "w1=anew"), shared = with(planner, "w1=shared");
    EXPECT_EQ(anew.regathered, std::set<std::string>{"w1"}) << planner;
    EXPECT_TRUE(shared.regathered.empty()) << planner;
    EXPECT_LT(shared.comm_seconds, anew.comm_seconds) << planner;
    const Plan from = with(planner, "w1=shared [-,data]");
    EXPECT_EQ(to_string(from.redistributed.at("w1"), from.mesh), "[-, {data}]") << planner;
    EXPECT_EQ(shared.redistributed.count("w1"), 0U) << planner;
  }
  // As fsdp without gathering again in the backward pass.
  EXPECT_EQ(plan_of(mlp(), {"w0=shared"}, "fsdp", "data=2").regathered,
            std::set<std::string>{"w1"});
  EXPECT_EQ(plan_of(mlp(), {}, "fsdp", "data=2").regathered, (std::set<std::string>{"w0", "w1"}));
  EXPECT_EQ(refusal({"w0=anew", "w.=shared"}),
            "--shard 'w0=anew' and --shard 'w.=shared' contradict at value 'w0'; leave out one of "
            "the two");
  EXPECT_EQ(refusal({"w0>w0/matmul=anew"}),
            "--shard 'w0>w0/matmul=anew': is of a node, and 'anew' is how copies of a value are "
            "made for its readers; wanted REGEX=anew");
  EXPECT_EQ(refusal({"w0=shared by all"}).substr(0, 26), "--shard 'w0=shared by all'");
}

/// A name without operators is found as it is, however long, and as one that begins with %.
TEST(Requests, PlainNames) {
  Graph graph = mlp();
  const ValueId w0 = graph.find("w0");
  const std::string odd = std::string(2000, 'w') + ".0[1]>(a|b)";
  graph.value(w0).name = odd;
  const Mesh mesh = Mesh::parse("2");
  const RequestFinder finder(graph, mesh);
  ASSERT_EQ(finder.find(quoted_name(odd) + "=[a,-]").lies.size(), 1U);
  EXPECT_EQ(finder.find(quoted_name(odd) + "=[a,-]").lies[0].value, w0);
  const Request read = finder.find(quoted_name(odd) + ">w0/matmul=[-,-]");
  ASSERT_EQ(read.lies.size(), 1U);
  EXPECT_EQ(read.lies[0].value, w0);
  EXPECT_EQ(finder.find("w0/relu=[a,-]").lies[0].value, graph.find("%w0/relu"));
  EXPECT_EQ(finder.find("%w0/relu=[a,-]").lies[0].value, graph.find("%w0/relu"));
}

/// What reads a value that is computed again reads that value.
TEST(Requests, ReadersOfWhatIsComputedAgain) {
  const Graph graph = mlp(), again = with_recomputed(graph, {"w0/relu"});
  const Mesh mesh = Mesh::parse("2");
  const auto readers = [&](const Graph& of) {
    std::set<std::string> out;
    for (const Request::Lies& lies : find_request("w0/relu>.*=[a,-]", of, mesh).lies)
      out.insert(of.node(lies.node).name);
    return out;
  };
  EXPECT_GT(readers(graph).size(), 1U);
  EXPECT_EQ(readers(again), readers(graph));
}

TEST(Requests, OneExpressionPinsAllThatItMatches) {
  const Plan plan = plan_of(mlp(), {"w[01]=[-,model]"});
  for (const char* name : {"w0", "w1", "adam_m/w0", "adam_v/w1"})
    EXPECT_EQ(layout(plan, name), "[-, {model}]") << name;
}

TEST(Requests, GoWithABaselineThatLeavesThemOpen) {
  const Plan plan = plan_of(mlp(), {"w.=[-,data]"}, "fsdp", "data=2");
  EXPECT_EQ(layout(plan, "w0"), "[-, {data}]");
  EXPECT_EQ(layout(plan, "%w0/matmul"), "[{data}, -]");
}

/// 3 columns over 4 ranks: one of them has none.
TEST(Requests, MayLeaveARankEmpty) {
  const Graph graph = mlp(8, 3);
  const Plan plan = plan_of(graph, {"w0=[-,r]", "w0/relu=[-,r]"}, "auto", "r=4");
  EXPECT_EQ(layout(plan, "w0"), "[-, {r}]");
  EXPECT_EQ(layout(plan, "%w0/relu"), "[-, {r}]");
}

/// Over an axis of one rank nothing is cut.
TEST(Requests, AnAxisOfOneRank) {
  const Plan plan = plan_of(mlp(), {"w0=[data,model]"}, "auto", "data=1,model=2");
  EXPECT_EQ(layout(plan, "w0"), "[-, {model}]");
}

TEST(Requests, AreRefusedWhereTheyAreNoRequests) {
  EXPECT_EQ(refusal({"w0"}),
            "--shard 'w0': is not REGEX=SHARDING, as 'h.0.mlp.c_fc.weight=[-,model]' is");
  EXPECT_EQ(refusal({"layer(0=[-,-]"}).substr(0, 64),
            "--shard 'layer(0': is not a regular expression: missing ): layer");
  EXPECT_EQ(refusal({"w0=[-,seq]"}),
            "--shard 'w0=[-,seq]': sharding '[-,seq]': axis 'seq' is not in the mesh "
            "data=2,model=2; write [{data}, -] or [-] partial(sum: model)");
  EXPECT_EQ(refusal({"w0=[data,-]"}, "auto", "a=2,b=2"),
            "--shard 'w0=[data,-]': sharding '[data,-]': axis 'data' is not in the mesh a=2,b=2; "
            "write [{a}, -] or [-] partial(sum: b)");
  EXPECT_EQ(refusal({"w0=[data,data]"}),
            "--shard 'w0=[data,data]': sharding [{data}, {data}] uses axis 'data' twice");
}

TEST(Requests, SayWhetherTheyNameAxes) {
  for (const char* text : {"w=anew", "w=shared", "?w=shared", "w=shared [-,-]", "w=[-, -]",
                           "x>dot=[-]", "dot()=[-,-]", "layer=w=shared"})
    EXPECT_FALSE(names_axes(text)) << text;
  for (const char* text : {"w=[data,-]", "w=shared [-,model]", "?w=[-,{a}]", "w=sharedly",
                           "w=[-] partial(sum: a)", "dot()=[b]"})
    EXPECT_TRUE(names_axes(text)) << text;
}

TEST(Requests, AreRefusedWhereNoValueFits) {
  EXPECT_EQ(refusal({"w.w=[-,-]"}),
            "--shard 'w.w=[-,-]': no value's whole name matches; near are 'w0', "
            "'w1', 'x'");
  // A name that holds the expression comes first.
  EXPECT_NE(refusal({"relu=[-,-]"}).find("near are '%w0/relu', '%w1/relu'"), std::string::npos)
      << refusal({"relu=[-,-]"});
  EXPECT_EQ(refusal({"w0=[data]"}),
            "--shard 'w0=[data]': names 1 dims, value 'w0' is f32[12, 12]; give each "
            "of its 2 dims an axis or -");
  EXPECT_EQ(refusal({"x=[-,-] partial(sum: data)"}),
            "--shard 'x=[-,-] partial(sum: data)': value 'x' is made by no node, so it cannot be "
            "partial");
}

TEST(Requests, ContradictEachOther) {
  EXPECT_EQ(refusal({"w0/.*=[data,-]", "w0/matmul=[-,model]"}),
            "--shard 'w0/.*=[data,-]' and --shard 'w0/matmul=[-,model]' contradict at "
            "node 'w0/matmul', value '%w0/matmul': [{data}, -] and [-, {model}]; leave out "
            "one of the two");
  EXPECT_EQ(refusal({"w0=[data,-]", "w0=[-,model]"}),
            "--shard 'w0=[data,-]' and --shard 'w0=[-,model]' contradict at value "
            "'w0': [{data}, -] and [-, {model}]; leave out one of the two");
  // A parameter and its moment come from one node, which cuts both alike.
  EXPECT_EQ(refusal({"w0=[data,-]", "adam_v/w0=[-,model]"}),
            "--shard 'w0=[data,-]' and --shard 'adam_v/w0=[-,model]' contradict at node "
            "'update/w0' (adamw): it cannot leave '%update/w0:0' [{data}, -] and "
            "'%update/w0:2' [-, {model}] at once; leave out one of the two");
  EXPECT_EQ(refusal({"w0=[data,-]", "update/w0:0=[-,model]"}),
            "--shard 'w0=[data,-]' and --shard 'update/w0:0=[-,model]' contradict at "
            "node 'update/w0': '%update/w0:0' replaces 'w0' after the step, so "
            "they lie alike; leave out one of the two");
}

TEST(Requests, ContradictThePlanner) {
  EXPECT_EQ(refusal({"w0=[-,data]"}, "dp", "data=2"),
            "--shard 'w0=[-,data]' and --planner dp contradict at node 'update/w0' "
            "(adamw): the planner does not let '%update/w0:0' lie [-, {data}]; leave out the "
            "request or take another planner");
  EXPECT_EQ(refusal({"x=[-,-]"}, "dp", "data=2"),
            "--shard 'x=[-,-]' and --planner dp contradict at node 'w0/matmul', which reads "
            "it: the planner does not let 'x' lie [-, -]; leave out the request or take another "
            "planner");
  EXPECT_EQ(refusal({"w0/matmul=[-,data]"}, "fsdp", "data=2"),
            "--shard 'w0/matmul=[-,data]' and --planner fsdp contradict at node "
            "'w0/matmul' (matmul): the planner does not let '%w0/matmul' lie [-, {data}]; "
            "leave out the request or take another planner");
}

TEST(Requests, AskWhatANodeCannotDo) {
  EXPECT_EQ(refusal({"w0/relu=[-,-] partial(sum: model)"}, "auto", "model=2"),
            "--shard 'w0/relu=[-,-] partial(sum: model)': node 'w0/relu' (relu) cannot "
            "leave '%w0/relu' [-, -] partial(sum: model); it can leave it [-, -], [-, {model}], "
            "[{model}, -]");
}

// No maximum is ever cut here, so the search looks at partial maxima only where one is asked for.
TEST(Requests, AskForPartialMaxima) {
  EXPECT_EQ(refusal({"w0/relu=[-,-] partial(max: model)"}, "auto", "model=2"), "it was allowed");
}

}  // namespace
}  // namespace shardrun
