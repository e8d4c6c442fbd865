// Mixtures of experts: experts are a dim like others, and tokens go between what is cut by samples
// and what is cut by experts in an all_to_all.
#include <gtest/gtest.h>

#include "planner/cost/cluster_file.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::rules;
using test::ShardedRun;

/// Two blocks of so many experts; some choices find no place.
Graph mixture(int64_t experts) {
  GptOptions o = test::small();
  o.batch = 8;
  o.experts = experts;
  o.capacity = 0.75;
  return test::gpt_step(o);
}

Plan planned(const Graph& graph, const std::string& mesh, const std::vector<std::string>& tactics) {
  PlanOptions options;
  options.tactics = tactics;
  options.planner = parse_planner("propagate");
  const Plan plan =
      plan_shardings(graph, Mesh::parse(mesh), host_cluster(), options, rules(), nullptr);
  check_plan(plan, graph);
  return plan;
}

int count_of(const Graph& graph, const Plan& plan, const std::string& kind) {
  int count = 0;
  for (const std::string& call : test::collectives(graph, plan))
    count += call.rfind(kind + " ", 0) == 0;
  return count;
}

/// The losses of five steps are one rank's to 1e-6 of them, and bytes are those predicted.
void expect_runs_as_one(const Graph& graph, const std::vector<Plan>& plans) {
  const auto batches = test::feeds(graph, 5);
  const ShardedRun alone = test::run_sharded(graph, planned(graph, "1", {}), batches, 1e-2);
  EXPECT_LT(alone.metrics[4].at("loss"), alone.metrics[0].at("loss"));
  for (const Plan& plan : plans) {
    SCOPED_TRACE(plan.mesh.to_string());
    const ShardedRun run = test::run_sharded(graph, plan, batches, 1e-2);
    EXPECT_EQ(run.allocated_bytes, run.predicted_bytes);
    for (size_t s = 0; s < batches.size(); ++s) {
      const double loss = alone.metrics[s].at("loss");
      EXPECT_NEAR(run.metrics[s].at("loss"), loss, 1e-6 * loss) << "step " << s;
    }
  }
}

/// In each block tokens go to the experts and back, and their gradients the same way: four calls.
TEST(Experts, TokensAreSentByAllToAll) {
  const Graph graph = mixture(8);
  std::vector<Plan> plans;
  for (const int ranks : {2, 4, 8}) {
    plans.push_back(planned(graph, str("m=", ranks), {".*experts.*weight.0@m", "batch@m"}));
    EXPECT_GE(count_of(graph, plans.back(), "all_to_all"), 2 * 4) << ranks;
  }
  // 3, 3 and 2 experts: what comes back from places of several experts is gathered.
  plans.push_back(planned(graph, "m=3", {".*experts.*weight.0@m", "batch@m"}));
  EXPECT_GE(count_of(graph, plans.back(), "all_to_all"), 2 * 2);
  expect_runs_as_one(graph, plans);
}

/// Four experts on eight ranks: an expert's hidden dim lies along the second of the sub-axes.
TEST(Experts, FewerThanRanksShareASubAxis) {
  const Graph graph = mixture(4);
  const Plan plan =
      planned(graph, "model=4*2",
              {".*experts.*weight.0@model.0", ".*experts.c_fc.weight.2@model.1", "batch@model"});
  const Mesh& mesh = plan.mesh;
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_fc.weight"),
            parse_sharding("[{model.0},-,{model.1}]", mesh));
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_proj.weight"),
            parse_sharding("[{model.0},{model.1},-]", mesh));
  EXPECT_GE(count_of(graph, plan, "all_to_all"), 2 * 4);
  expect_runs_as_one(graph, {plan});
}

/// Experts whose weights are too large to be whole on each device are cut as above, unasked.
class ExpertsOnGpus : public testing::Test {
 protected:
  static Plan plan_of(const Graph& graph, const std::string& mesh) {
    return plan_shardings(graph, Mesh::parse(mesh), load_cluster("h100"), {}, rules(), nullptr);
  }
  static Graph large(int64_t experts) {
    GptOptions o;
    o.layers = 1;
    o.heads = 16;
    o.hidden = 1024;
    o.context = 512;
    o.vocab = 1024;
    o.batch = 16;
    o.experts = experts;
    o.weights = false;
    return test::gpt_step(o, {}, true);
  }
};

TEST_F(ExpertsOnGpus, AreCutByTheSearch) {
  const Graph graph = large(8);
  const Plan plan = plan_of(graph, "m=8");
  const Sharding by_experts = parse_sharding("[{m},-,-]", plan.mesh);
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_fc.weight"), by_experts);
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_proj.weight"), by_experts);
  EXPECT_GE(count_of(graph, plan, "all_to_all"), 3);
}

TEST_F(ExpertsOnGpus, AndTheirHiddenDimWhereTheyAreFewer) {
  const Graph graph = large(4);
  const Plan plan = plan_of(graph, "model=4*2");
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_fc.weight"),
            parse_sharding("[{model.0},-,{model.1}]", plan.mesh));
  EXPECT_EQ(plan.values.at("h.0.mlp.experts.c_proj.weight"),
            parse_sharding("[{model.0},{model.1},-]", plan.mesh));
  EXPECT_GE(count_of(graph, plan, "all_to_all"), 3);
}

}  // namespace
}  // namespace shardrun
