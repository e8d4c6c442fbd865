// check_strategies: every plan that the planner makes passes, every change of a Sharding does not.
#include "planner/space/plan_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/planner.h"
#include "planner/space/strategy.h"
#include "tests/planner/gpt_step.h"

namespace shardrun {
namespace {

Graph small_step() {
  GptOptions options;
  options.layers = 1;
  options.hidden = 32;
  options.heads = 4;
  options.vocab = 64;
  options.context = 16;
  options.batch = 8;
  return test::gpt_step(options);
}

Plan planned(const Graph& graph, const std::string& mesh, const std::string& planner,
             RuleCache& rules) {
  PlanOptions options;
  options.planner = parse_planner(planner);
  return plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules);
}

/// "" if the plan passes.
std::string refusal(const Plan& plan, const Graph& graph, RuleCache& rules) {
  try {
    check_strategies(plan, graph, rules);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
  return "";
}

TEST(PlanCheck, AcceptsWhatPlannersMake) {
  const Graph graph = small_step();
  RuleCache rules;
  for (const char* planner : {"dp", "zero1", "zero2", "fsdp", "megatron", "megatron-sp"}) {
    for (const char* mesh : {"a=2", "a=3"})
      EXPECT_EQ(refusal(planned(graph, mesh, planner, rules), graph, rules), "") << planner;
  }
  for (const char* planner : {"auto", "beam", "fsdp+megatron", "zero2+megatron-sp"})
    EXPECT_EQ(refusal(planned(graph, "a=2,b=2", planner, rules), graph, rules), "") << planner;
  // 16 ranks cut a batch of 8, and 8 are left without a row.
  EXPECT_EQ(refusal(planned(graph, "a=16", "dp", rules), graph, rules), "");
  EXPECT_EQ(refusal(planned(graph, "a=1", "auto", rules), graph, rules), "");
}

/// Each result's Sharding by one that its rule does not have with the node's others: whole where
/// it is cut or partial, partial where it is whole. What is made of whole operands may be whole.
TEST(PlanCheck, RefusesOtherResults) {
  const Graph graph = small_step();
  RuleCache rules;
  const Plan good = planned(graph, "a=2", "dp", rules);
  int cut = 0, partial = 0;
  for (const auto& [name, node] : good.nodes) {
    const bool of_whole = std::all_of(node.in.begin(), node.in.end(),
                                      [](const Sharding& in) { return in.is_replicated(); });
    for (size_t r = 0; r < node.out.size(); ++r) {
      Plan plan = good;
      Sharding& out = plan.nodes.at(name).out[r];
      if (of_whole && !out.is_replicated()) continue;
      if (out.is_replicated()) {
        out.partial = {{0, ReduceOp::sum}};
      } else {
        ++(out.partial.empty() ? cut : partial);
        out = Sharding::replicated(out.dims.size());
      }
      const std::string field =
          str("nodes['", name, "'].out[", r, "] is ", to_string(out, plan.mesh), ", allowed is ");
      EXPECT_NE(refusal(plan, graph, rules).find(field), std::string::npos)
          << field << "\n"
          << refusal(plan, graph, rules);
    }
  }
  EXPECT_GT(cut, 10);
  EXPECT_GT(partial, 3);
}

/// Rows of an image over two ranks: a window of 3 reads one more on each side, not two.
TEST(PlanCheck, ComparesWindows) {
  Graph graph;
  const std::vector<int64_t> one{1, 1};
  const ValueId image = graph.add_input("image", {DType::f32, {1, 1, 12, 1}}, Role::batch),
                weight = graph.add_input("weight", {DType::f32, {1, 1, 3, 1}}, Role::batch);
  graph.add("conv", {image, weight},
            {{"strides", one},
             {"dilations", one},
             {"pads_low", std::vector<int64_t>{1, 0}},
             {"pads_high", std::vector<int64_t>{1, 0}},
             {"groups", int64_t{1}}});
  const Node& node = graph.nodes()[0];
  RuleCache rules;
  Plan plan;
  plan.mesh = Mesh::parse("a=2");
  const auto in = graph.types(node.inputs), out = graph.types(node.outputs);
  int windows = 0;
  for (const Strategy& s :
       enumerate_strategies(node, in, out, rules.rule(node, in), plan.mesh, host_cluster())) {
    plan.nodes[node.name] = s.node_plan();
    EXPECT_EQ(refusal(plan, graph, rules), "");
    if (s.halos.empty()) continue;
    ++windows;
    --plan.nodes[node.name].halos[0].window.low;
    EXPECT_NE(refusal(plan, graph, rules).find("nodes['" + node.name + "'].halos is "),
              std::string::npos)
        << refusal(plan, graph, rules);
  }
  EXPECT_GT(windows, 0);
}

}  // namespace
}  // namespace shardrun
