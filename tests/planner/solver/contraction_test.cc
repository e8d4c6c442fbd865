// What a contraction leaves has the same solutions at the same cost.
#include "planner/solver/presolve/contraction.h"

#include <gtest/gtest.h>

#include <random>

#include "planner/solver/narrowing.h"
#include "tests/support/factored_problems.h"

namespace shardrun {
namespace {

using Matrix = FactoredProblem::Matrix;

/// Zero where row and column are the same, forbidden elsewhere.
std::shared_ptr<const Matrix> equal(size_t names) {
  auto out = std::make_shared<Matrix>(names, names);
  for (size_t i = 0; i < names; ++i) out->set(i, i, 0);
  return out;
}

/// `updates` nodes that lie as `values` of them do, at random costs, and one node more for each
/// update, which pays where it lies otherwise.
FactoredProblem updates_of(int updates, int values, uint64_t seed) {
  std::mt19937_64 random(seed);
  FactoredProblem out;
  const auto add = [&](const std::string& name, size_t choices) {
    FactoredProblem::Node node{name, {}, {{{}, {{0, 1}}}}, static_cast<double>(out.nodes.size())};
    for (size_t a = 0; a < choices; ++a) {
      node.cost.push_back(static_cast<double>(random() % 20));
      node.claims[0].bytes.push_back(static_cast<int64_t>(1 + random() % 9));
    }
    out.nodes.push_back(std::move(node));
    return static_cast<int>(out.nodes.size()) - 1;
  };
  const std::shared_ptr<const Matrix> same = equal(3);
  auto other = std::make_shared<Matrix>(3, 2);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 2; ++c) other->set(r, c, static_cast<double>(random() % 15));
  }
  other->forbids = false;
  for (int v = 0; v < values; ++v) add("value" + std::to_string(v), 3);
  for (int u = 0; u < updates; ++u) {
    const int update = add("update" + std::to_string(u), 3);
    // A value numbers its choices otherwise than its updates do.
    for (int v = 0; v < values; ++v)
      out.edges.push_back({v, update, 1, same, {2, 0, 1}, {0, 1, 2}});
    const int reader = add("reader" + std::to_string(u), 4);
    out.edges.push_back({update, reader, 1, other, {0, 1, 2}, {0, 1, 1, 0}});
    out.edges.push_back({reader, update, 2, equal(1), {0, 0, 0, 0}, {0, 0, 0}});
  }
  return out;
}

/// Every solution of either problem is one of the other, and costs and claims the same.
void expect_the_same(const FactoredProblem& problem) {
  const Contraction less(problem);
  int allowed = 0, left = 0;
  test::each_solution(problem, [&](const Solution& solution) {
    const double cost = raw_cost(problem, solution);
    if (cost == kInfeasible) return;
    ++allowed;
    const std::optional<Solution> its = less.contracted(solution);
    ASSERT_TRUE(its);
    EXPECT_EQ(less.expanded(*its), solution);
    EXPECT_NEAR(raw_cost(less.problem(), *its), cost, 1e-9);
    EXPECT_EQ(peak_bytes(less.problem(), *its), peak_bytes(problem, solution));
  });
  test::each_solution(less.problem(), [&](const Solution& solution) {
    if (raw_cost(less.problem(), solution) == kInfeasible) return;
    ++left;
    EXPECT_NEAR(raw_cost(problem, less.expanded(solution)), raw_cost(less.problem(), solution),
                1e-9);
  });
  EXPECT_EQ(left, allowed);
}

TEST(Contraction, ValuesAndUpdatesThatLieAlikeAreOneNode) {
  const FactoredProblem problem = updates_of(2, 2, 1);
  const Contraction less(problem);
  // Both updates, by way of their values; and each one's reader.
  EXPECT_EQ(less.problem().nodes.size(), 3u);
  for (int v = 0; v < 2; ++v) EXPECT_EQ(less.node(v), less.node(2));
  // Two edges between an update and its reader are one.
  EXPECT_EQ(less.problem().edges.size(), 2u);
  for (uint64_t seed = 1; seed <= 5; ++seed) expect_the_same(updates_of(2, 2, seed));
}

TEST(Contraction, WhatNothingDecidesStays) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const FactoredProblem problem = test::random_problem(6, seed, true, 5);
    EXPECT_EQ(Contraction(problem).problem().nodes.size(), problem.nodes.size());
    expect_the_same(problem);
  }
}

TEST(Contraction, ManyChoicesMayDecideOne) {
  // Choices 0 and 1 of the second node want the first's 0, choice 2 wants its 1.
  FactoredProblem problem;
  problem.nodes = {{"0", {1, 5}, {}, 0}, {"1", {3, 2, 4}, {}, 1}, {"2", {7}, {}, 2}};
  auto single = std::make_shared<Matrix>(1, 2);
  single->set(0, 0, 10), single->set(0, 1, 20);
  problem.edges = {{0, 1, 1, equal(2), {0, 1}, {0, 0, 1}}, {2, 0, 1, single, {0}, {1, 0}}};
  expect_the_same(problem);
  const Contraction less(problem);
  EXPECT_EQ(less.choices(0), (std::vector<int>{0, 0, 1}));
  // The edge of what has no choice is a cost.
  EXPECT_TRUE(less.problem().edges.empty());
  EXPECT_EQ(less.problem().nodes[0].cost, (std::vector<double>{24, 23, 19}));
}

TEST(Contraction, WhatNarrowingSaysIsOfAllNodes) {
  FactoredProblem problem = updates_of(6, 3, 3);
  for (FactoredProblem::Node& node : problem.nodes) {
    if (node.name.starts_with("update")) node.cost = {9, 0, 9};
    if (node.name.starts_with("value")) node.cost = {0, 0, 0};
  }
  const std::optional<Narrowed> found = narrow(problem, {.gap = 1e-9});
  ASSERT_TRUE(found && found->solution);
  for (int v = 0; v < 3; ++v) EXPECT_EQ((*found->solution)[static_cast<size_t>(v)], 2);  // their 1
  EXPECT_NEAR(found->cost, found->lower_bound, 1e-4 * found->cost);
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const std::vector<int>& kept = found->kept[i];
    EXPECT_TRUE(std::find(kept.begin(), kept.end(), (*found->solution)[i]) != kept.end());
    EXPECT_EQ(kept.size(), found->slack[i].size());
  }
}

}  // namespace
}  // namespace shardrun
