// Requests for shardings: what they do to a plan, and every way in which they are refused.
#include "planner/space/constraints.h"

#include <gtest/gtest.h>

#include "graph/optimizer.h"
#include "planner/planner.h"

namespace shardrun {
namespace {

/// Two layers x w, relu, squared error, AdamW.
Graph mlp(int64_t batch = 16, int64_t width = 12) {
  Graph g;
  g.name = "mlp";
  ValueId x = g.add_input("x", {DType::f32, {batch, width}}, Role::batch);
  const ValueId target = g.add_input("target", {DType::f32, {batch, width}}, Role::batch);
  for (int i = 0; i < 2; ++i) {
    const std::string name = "layer" + std::to_string(i);
    const ValueId w =
        g.add_persistent(name + "/w", {DType::f32, {width, width}}, Role::parameter, Source{});
    g.trainable[w] = true;
    x = g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, name + "/matmul");
    x = g.add("relu", {x}, {}, name + "/relu");
  }
  const ValueId difference = g.add("sub", {x, target}, {}, "difference");
  const ValueId square = g.add("mul", {difference, difference}, {}, "square");
  g.loss = g.add("reduce_sum", {square},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
  attach_optimizer(g, {});
  return g;
}

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

Plan plan_of(const Graph& graph, const std::vector<std::string>& requests,
             const std::string& planner = "auto", const std::string& mesh = "data=2,model=2") {
  PlanOptions options;
  options.planner = planner;
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
  const Plan plan = plan_of(
      mlp(), {"layer0/w=[-,data+model]", "layer1/.atmul=[model,data]", "x=[batch{model}, -]",
              "adam_m/layer1/w=[{data},{model}]", "matmul_2=[-,-] partial(sum: data)"});
  EXPECT_EQ(layout(plan, "layer0/w"), "[-, {data,model}]");
  EXPECT_EQ(layout(plan, "%layer1/matmul"), "[{model}, {data}]");
  EXPECT_EQ(layout(plan, "x"), "[{model}, -]");
  EXPECT_EQ(layout(plan, "adam_m/layer1/w"), "[{data}, {model}]");
  EXPECT_EQ(layout(plan, "layer1/w"), "[{data}, {model}]");  // they are updated together
  EXPECT_EQ(layout(plan, "%matmul_2"), "[-, -] partial(sum: data)");
}

TEST(Requests, OneExpressionPinsAllThatItMatches) {
  const Plan plan = plan_of(mlp(), {".*/w=[-,model]"});
  for (const char* name : {"layer0/w", "layer1/w", "adam_m/layer0/w", "adam_v/layer1/w"})
    EXPECT_EQ(layout(plan, name), "[-, {model}]") << name;
}

TEST(Requests, GoWithABaselineThatLeavesRoom) {
  const Plan plan = plan_of(mlp(), {"layer.*/w=[-,data]"}, "fsdp", "data=2");
  EXPECT_EQ(layout(plan, "layer0/w"), "[-, {data}]");
  EXPECT_EQ(layout(plan, "%layer0/matmul"), "[{data}, -]");
}

/// 3 columns over 4 ranks: one of them has none.
TEST(Requests, MayLeaveARankEmpty) {
  const Graph graph = mlp(8, 3);
  const Plan plan = plan_of(graph, {"layer0/w=[-,r]", "layer0/relu=[-,r]"}, "auto", "r=4");
  EXPECT_EQ(layout(plan, "layer0/w"), "[-, {r}]");
  EXPECT_EQ(layout(plan, "%layer0/relu"), "[-, {r}]");
}

/// Over an axis of one rank nothing is cut.
TEST(Requests, AnAxisOfOneRank) {
  const Plan plan = plan_of(mlp(), {"layer0/w=[data,model]"}, "auto", "data=1,model=2");
  EXPECT_EQ(layout(plan, "layer0/w"), "[-, {model}]");
}

TEST(Requests, AreRefusedWhereTheyAreNoRequests) {
  EXPECT_EQ(refusal({"layer0/w"}),
            "--shard 'layer0/w': is not REGEX=SHARDING, as 'h.0.mlp.c_fc.weight=[-,model]' is");
  EXPECT_EQ(refusal({"layer(0=[-,-]"}).substr(0, 64),
            "--shard 'layer(0': is not a regular expression: missing ): layer");
  EXPECT_EQ(refusal({"layer0/w=[-,seq]"}),
            "--shard 'layer0/w=[-,seq]': sharding '[-,seq]': axis 'seq' is not in the mesh "
            "data=2,model=2; write [{data}, -] or [-] partial(sum: model)");
  EXPECT_EQ(refusal({"layer0/w=[data,data]"}),
            "--shard 'layer0/w=[data,data]': sharding [{data}, {data}] uses axis 'data' twice");
}

TEST(Requests, AreRefusedWhereNoValueFits) {
  EXPECT_EQ(refusal({"layer0.w0=[-,-]"}),
            "--shard 'layer0.w0=[-,-]': no value's whole name matches; near are 'layer0/w', "
            "'layer1/w', '%layer0/relu'");
  // A name that holds the expression comes first.
  EXPECT_NE(refusal({"relu=[-,-]"}).find("near are '%layer0/relu', '%layer1/relu'"),
            std::string::npos)
      << refusal({"relu=[-,-]"});
  EXPECT_EQ(refusal({"layer0/w=[data]"}),
            "--shard 'layer0/w=[data]': names 1 dims, value 'layer0/w' is f32[12, 12]; give each "
            "of its 2 dims an axis or -");
  EXPECT_EQ(refusal({"x=[-,-] partial(sum: data)"}),
            "--shard 'x=[-,-] partial(sum: data)': value 'x' is made by no node, so it cannot be "
            "partial");
}

TEST(Requests, ContradictEachOther) {
  EXPECT_EQ(refusal({"layer0/.*=[data,-]", "layer0/matmul=[-,model]"}),
            "--shard 'layer0/.*=[data,-]' and --shard 'layer0/matmul=[-,model]' contradict at "
            "node 'layer0/matmul', value '%layer0/matmul': [{data}, -] and [-, {model}]; leave out "
            "one of the two");
  EXPECT_EQ(refusal({"layer0/w=[data,-]", "layer0/w=[-,model]"}),
            "--shard 'layer0/w=[data,-]' and --shard 'layer0/w=[-,model]' contradict at value "
            "'layer0/w': [{data}, -] and [-, {model}]; leave out one of the two");
  // A parameter and its moment come from one node, which cuts both alike.
  EXPECT_EQ(
      refusal({"layer0/w=[data,-]", "adam_v/layer0/w=[-,model]"}),
      "--shard 'layer0/w=[data,-]' and --shard 'adam_v/layer0/w=[-,model]' contradict at node "
      "'update/layer0/w' (adamw): it cannot leave '%update/layer0/w:0' [{data}, -] and "
      "'%update/layer0/w:2' [-, {model}] at once; leave out one of the two");
  EXPECT_EQ(refusal({"layer0/w=[data,-]", "update/layer0/w:0=[-,model]"}),
            "--shard 'layer0/w=[data,-]' and --shard 'update/layer0/w:0=[-,model]' contradict at "
            "node 'update/layer0/w': '%update/layer0/w:0' replaces 'layer0/w' after the step, so "
            "they lie alike; leave out one of the two");
}

TEST(Requests, ContradictThePlanner) {
  EXPECT_EQ(refusal({"layer0/w=[-,data]"}, "dp", "data=2"),
            "--shard 'layer0/w=[-,data]' and --planner dp contradict at node 'update/layer0/w' "
            "(adamw): the planner does not let '%update/layer0/w:0' lie [-, {data}]; leave out the "
            "request or take another planner");
  EXPECT_EQ(refusal({"x=[-,-]"}, "dp", "data=2"),
            "--shard 'x=[-,-]' and --planner dp contradict at node 'layer0/matmul', which reads "
            "it: the planner does not let 'x' lie [-, -]; leave out the request or take another "
            "planner");
  EXPECT_EQ(refusal({"layer0/matmul=[-,data]"}, "fsdp", "data=2"),
            "--shard 'layer0/matmul=[-,data]' and --planner fsdp contradict at node "
            "'layer0/matmul' (matmul): the planner does not let '%layer0/matmul' lie [-, {data}]; "
            "leave out the request or take another planner");
}

TEST(Requests, AskWhatANodeCannotDo) {
  EXPECT_EQ(
      refusal({"layer0/relu=[-,-] partial(sum: model)"}, "auto", "model=2"),
      "--shard 'layer0/relu=[-,-] partial(sum: model)': node 'layer0/relu' (relu) cannot "
      "leave '%layer0/relu' [-, -] partial(sum: model); it can leave it [-, -], [-, {model}], "
      "[{model}, -]");
}

// No maximum is ever cut here, so the search looks at partial maxima only where one is asked for.
TEST(Requests, AskForPartialMaxima) {
  EXPECT_EQ(refusal({"layer0/relu=[-,-] partial(max: model)"}, "auto", "model=2"),
            "it was allowed");
}

}  // namespace
}  // namespace shardrun
