// Times of steps whose collectives run while kernels do, and solutions of shorter steps.
#include "planner/step_descent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/at.h"
#include "planner/cost/cluster.h"
#include "planner/reshard/reshard_table.h"

namespace shardrun {
namespace {

/// A sum that is asked for behind `tanh` runs while `relu` does; `add` reads both.
TEST(StepTimes, ACollectiveRunsWhileKernelsDo) {
  Graph graph;
  const TensorType type{DType::f32, {1 << 20}};
  const ValueId x = graph.add_input("x", type, Role::batch);
  const ValueId sum = graph.add("tanh", {x}, {}, "sum"),
                other = graph.add("relu", {x}, {}, "other");
  graph.outputs = {graph.add("add", {sum, other}, {}, "both")};
  const Mesh mesh = Mesh::parse("2");
  const Cluster cluster;
  ReshardTimes times(mesh, cluster);
  const Sharding whole = Sharding::replicated(1);
  Sharding partial = whole;
  partial.partial = {{0, ReduceOp::sum}};
  const double seconds =
      times.seconds(times.number_of(type), times.number_of(partial), times.number_of(whole));
  ASSERT_GT(seconds, 0);
  const Folding folding = fold(graph, {});
  const auto class_of = [&](ValueId made) {
    return at(folding.class_of_node[at(graph.value(made).producer)]);
  };
  for (const double kernel : {0.5 * seconds, 2 * seconds}) {
    SCOPED_TRACE(kernel / seconds);
    SearchSpace space;
    space.sum_prices.resize(graph.values().size());
    space.strategies.resize(folding.classes.size());
    space.strategies[class_of(sum)] = {{{whole}, {partial}, 0.25 * seconds}};
    space.strategies[class_of(other)] = {{{whole}, {whole}, kernel}};
    space.strategies[class_of(graph.outputs[0])] = {{{whole, whole}, {whole}, 0.125 * seconds}};
    add_value_strategies(space, graph, folding, {});
    JointProblem joint = build_problem(space, graph, folding, mesh, times);
    const PlanContext posed{graph, mesh, folding, space, joint, times};
    StepTimes step(posed);
    const Solution only(joint.problem.nodes.size(), 0);
    const auto [whole_step, fractions] = step.chain(only);
    EXPECT_NEAR(whole_step, 0.375 * seconds + std::max(seconds, kernel), 1e-6 * seconds);
    EXPECT_EQ(step.seconds(only), whole_step);
    const double hidden = kernel > seconds ? 1 : 0;
    EXPECT_EQ(fractions.reshardings[class_of(sum)], 1 - hidden);
    EXPECT_EQ(fractions.kernels[class_of(other)], hidden);
    EXPECT_EQ(fractions.kernels[class_of(sum)], 1);
  }
}

/// A parameter on two ranks, and what gathering it takes.
struct Gathered {
  const TensorType type{DType::f32, {1 << 20}};
  const Mesh mesh = Mesh::parse("2");
  const Cluster cluster;
  ReshardTimes times{mesh, cluster};
  const Sharding whole = Sharding::replicated(1);
  Sharding cut = whole;
  Graph graph;
  ValueId held = graph.add_persistent("w", type, Role::parameter, {});
  double seconds = 0;

  Gathered() {
    cut.dims[0] = {0};
    seconds = times.seconds(times.number_of(type), times.number_of(cut), times.number_of(whole));
    EXPECT_GT(seconds, 0);
  }
};

/// An update that is made in parts is gathered where the next step begins with it whole.
TEST(StepTimes, AnUpdateIsBroughtToWhereItIsHeld) {
  Gathered g;
  const ValueId next = g.graph.add("relu", {g.held}, {}, "next");
  g.graph.updates[g.held] = next;
  const double kernel = 1;
  const Folding folding = fold(g.graph, {});
  SearchSpace space;
  space.reshards_updates = true;
  space.sum_prices.resize(g.graph.values().size());
  space.strategies.resize(folding.classes.size());
  space.strategies[at(folding.class_of_node[at(g.graph.value(next).producer)])] = {
      {{g.whole}, {g.cut}, kernel}};
  add_value_strategies(space, g.graph, folding, {});
  JointProblem joint = build_problem(space, g.graph, folding, g.mesh, g.times);
  const PlanContext posed{g.graph, g.mesh, folding, space, joint, g.times};
  const Solution first(joint.problem.nodes.size(), 0);  // held whole
  ASSERT_EQ(posed.chosen(folding.class_of_value[at(g.held)], first).out[0], g.whole);
  EXPECT_NEAR(StepTimes(posed).seconds(first), kernel + g.seconds, 1e-9);
}

/// As fsdp gathers weights again in the backward pass.
TEST(StepTimes, ACopyIsMadeForEachReaderWhereItIsNotShared) {
  Gathered g;
  g.graph.add("relu", {g.held}, {}, "first");
  g.graph.add("tanh", {g.held}, {}, "second");
  const double kernel = g.seconds / 100;
  const Folding folding = fold(g.graph, {});
  for (const bool shared : {true, false}) {
    SearchSpace space;
    space.sum_prices.resize(g.graph.values().size());
    space.strategies.resize(folding.classes.size());
    for (const int node_class : folding.class_of_node)
      space.strategies[at(node_class)] = {{{g.whole}, {g.whole}, kernel}};
    space.strategies[at(folding.class_of_value[at(g.held)])] = {{{}, {g.cut}, 0}};
    space.regathered.assign(g.graph.values().size(), !shared);
    JointProblem joint = build_problem(space, g.graph, folding, g.mesh, g.times);
    const PlanContext posed{g.graph, g.mesh, folding, space, joint, g.times};
    const Solution only(joint.problem.nodes.size(), 0);
    EXPECT_NEAR(StepTimes(posed).seconds(only), (shared ? 1 : 2) * g.seconds + 2 * kernel,
                2 * kernel);
  }
}

/// Nodes in a ring, of three choices each.
FactoredProblem ring(int size, std::mt19937_64& random) {
  const auto cost = [&] { return 1 + static_cast<double>(random() % 1000); };
  FactoredProblem out;
  for (int i = 0; i < size; ++i)
    out.nodes.push_back({"n" + std::to_string(i), {cost(), cost(), cost()}, {}, double(i)});
  for (int i = 0; i < size; ++i) {
    auto matrix = std::make_shared<FactoredProblem::Matrix>(3, 3);
    matrix->forbids = false;
    for (size_t r = 0; r < 3; ++r) {
      for (size_t c = 0; c < 3; ++c) matrix->set(r, c, cost());
    }
    out.edges.push_back({i, (i + 1) % size, 1, matrix, {0, 1, 2}, {0, 1, 2}});
  }
  return out;
}

/// Where nodes and edges run at once, the least sum of both is not the shortest step.
TEST(StepDescent, FindsShorterSteps) {
  std::mt19937_64 random(7);
  int shorter = 0;
  for (int round = 0; round < 20; ++round) {
    const FactoredProblem problem = ring(6, random);
    const auto parts = [&](const Solution& solution) {
      double nodes = 0;
      for (size_t i = 0; i < solution.size(); ++i) nodes += problem.nodes[i].cost[at(solution[i])];
      return std::pair(nodes, raw_cost(problem, solution) - nodes);
    };
    StepModel step;
    step.seconds = [&](const Solution& solution) {
      const auto [nodes, edges] = parts(solution);
      return std::max(nodes, edges);
    };
    step.chain = [&](const Solution& solution) {
      const auto [nodes, edges] = parts(solution);
      const std::vector<double> all(solution.size(), 1), none(solution.size(), 0);
      return std::pair(std::max(nodes, edges),
                       nodes > edges ? ChainFractions{all, none} : ChainFractions{none, all});
    };
    Solution least(6, 0), one = least;
    for (int k = 0; k < 729; ++k) {
      for (int i = 0, rest = k; i < 6; ++i, rest /= 3) one[at(i)] = rest % 3;
      if (raw_cost(problem, one) < raw_cost(problem, least)) least = one;
    }
    const Solution found = step_descent(problem, step, least, 10000);
    EXPECT_LE(step.seconds(found), step.seconds(least));
    EXPECT_EQ(step_descent(problem, step, found, 10000), found);
    shorter += step.seconds(found) < step.seconds(least);
  }
  EXPECT_GT(shorter, 5);
}

}  // namespace
}  // namespace shardrun
