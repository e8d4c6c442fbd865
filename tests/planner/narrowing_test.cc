// Narrowing keeps the best solution and bounds it, with and without a memory limit.
#include "planner/narrowing.h"

#include <gtest/gtest.h>

#include <random>

#include "planner/factored_bound.h"
#include "planner/solver.h"

namespace shardrun {
namespace {

/// A layered graph of `count` nodes whose edges see a few rows and columns of shared matrices.
FactoredProblem random_problem(int count, uint64_t seed, bool with_claims = false,
                               uint64_t most_strategies = 11) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<std::shared_ptr<const FactoredProblem::Matrix>> matrices;
  for (int m = 0; m < 3; ++m) {
    auto matrix = std::make_shared<FactoredProblem::Matrix>(5, 5);
    for (size_t r = 0; r < 5; ++r) {
      for (size_t c = 0; c < 5; ++c)
        matrix->set(r, c, r == c ? 0.0 : 1.0 + static_cast<double>(below(9)));
    }
    matrices.push_back(std::move(matrix));
  }
  FactoredProblem problem;
  for (int i = 0; i < count; ++i) {
    FactoredProblem::Node node;
    node.name = "n" + std::to_string(i);
    node.place = i;
    const size_t strategies = 4 + below(most_strategies - 3);
    for (size_t a = 0; a < strategies; ++a) node.cost.push_back(static_cast<double>(below(20)));
    if (with_claims) {
      Problem::Claim claim{{}, {{i, i + 3}}};
      for (size_t a = 0; a < strategies; ++a)
        claim.bytes.push_back(static_cast<int64_t>(1 + below(10)));
      node.claims.push_back(std::move(claim));
    }
    problem.nodes.push_back(std::move(node));
  }
  for (int i = 1; i < count; ++i) {
    for (int j : {i - 1, static_cast<int>(below(static_cast<uint64_t>(i)))}) {
      FactoredProblem::Edge edge;
      edge.from = j;
      edge.to = i;
      edge.scale = 1 + static_cast<double>(below(3));
      edge.matrix = matrices[below(3)];
      for (size_t a = 0; a < problem.nodes[static_cast<size_t>(j)].cost.size(); ++a)
        edge.row.push_back(static_cast<uint16_t>(below(5)));
      for (size_t b = 0; b < problem.nodes[static_cast<size_t>(i)].cost.size(); ++b)
        edge.column.push_back(static_cast<uint16_t>(below(5)));
      problem.edges.push_back(std::move(edge));
    }
  }
  return problem;
}

double optimum(const FactoredProblem& problem) {
  SolveOptions options;
  options.seconds = 20;
  const SolveResult result = solve_ilp(dense(problem), options);
  return result.solution ? result.cost : kInfeasible;
}

/// By trying everything.
double optimum_within(const FactoredProblem& problem, int64_t limit) {
  Problem written = dense(problem);
  written.memory_limit = limit;
  Solution solution(problem.nodes.size(), 0);
  double best = kInfeasible;
  while (true) {
    best = std::min(best, evaluate(written, solution).cost);
    size_t i = 0;
    while (i < solution.size() && ++solution[i] == static_cast<int>(problem.nodes[i].cost.size()))
      solution[i++] = 0;
    if (i == solution.size()) return best;
  }
}

TEST(FactoredProblem, WrittenOutItIsTheSame) {
  const FactoredProblem problem = random_problem(12, 1, true);
  const Problem written = dense(problem);
  check_problem(written);
  Kept kept = all_kept(problem);
  for (std::vector<int>& strategies : kept) strategies.erase(strategies.begin() + 1);
  const FactoredProblem less = restricted(problem, kept);
  std::mt19937_64 random(2);
  for (int i = 0; i < 50; ++i) {
    Solution few;
    for (const FactoredProblem::Node& node : less.nodes)
      few.push_back(static_cast<int>(random() % node.cost.size()));
    const Solution all = expanded(few, kept);
    EXPECT_NEAR(raw_cost(problem, all), raw_cost(written, all), 1e-9);
    EXPECT_NEAR(raw_cost(less, few), raw_cost(problem, all), 1e-9);
    EXPECT_EQ(peak_bytes(problem, all), evaluate(written, all).peak_bytes);
    EXPECT_EQ(peak_bytes(less, few), peak_bytes(problem, all));
  }
}

TEST(FactoredProblem, ImpossibleStrategiesGo) {
  // 0 - 1 must agree on a name; 1 has no name "b", so neither has 0; 2 forbids its own second
  // strategy.
  FactoredProblem problem;
  problem.nodes = {{"0", {1, 1, 1}, {}, 0}, {"1", {1, 1}, {}, 1}, {"2", {1, kInfeasible}, {}, 2}};
  auto equal = std::make_shared<FactoredProblem::Matrix>(3, 3);
  for (size_t i = 0; i < 3; ++i) equal->set(i, i, 0);
  problem.edges = {{0, 1, 1, equal, {0, 1, 2}, {0, 2}}};
  Kept kept = all_kept(problem);
  ASSERT_TRUE(prune_impossible(problem, kept));
  EXPECT_EQ(kept, (Kept{{0, 2}, {0, 1}, {0}}));
  problem.edges = {{0, 1, 1, equal, {0, 0, 0}, {1, 2}}};
  kept = all_kept(problem);
  EXPECT_FALSE(prune_impossible(problem, kept));
}

TEST(FactoredBound, NeverExceedsTheOptimum) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const FactoredProblem problem = random_problem(20, seed);
    const double best = optimum(problem);
    FactoredBound bound(problem);
    double last = -kInfeasible;
    for (int sweep = 0; sweep < 40; ++sweep) {
      const double value = bound.sweep();
      EXPECT_LE(value, best + 1e-6) << "seed " << seed;
      EXPECT_GE(value, last - 1e-6) << "seed " << seed;
      last = value;
      EXPECT_GE(raw_cost(problem, bound.decoded()), best - 1e-6);
    }
    EXPECT_GT(last, 0.8 * best) << "seed " << seed;
  }
}

// A solution that takes strategy a of node i costs at least the bound and a's slack.
TEST(FactoredBound, SlacksHold) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const FactoredProblem problem = random_problem(9, seed);
    FactoredBound bound(problem);
    for (int sweep = 0; sweep < 10; ++sweep) bound.sweep();
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      for (size_t a = 0; a < problem.nodes[i].cost.size(); ++a) {
        Kept kept = all_kept(problem);
        kept[i] = {static_cast<int>(a)};
        EXPECT_LE(bound.bound_before_sweep() + bound.slack(static_cast<int>(i))[a],
                  optimum(restricted(problem, kept)) + 1e-6);
      }
    }
  }
}

TEST(Narrowing, KeepsAnOptimalSolution) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const FactoredProblem problem = random_problem(25, seed);
    const double best = optimum(problem);
    const std::optional<Narrowed> narrowed = narrow(problem, {.gap = 1e-9});
    ASSERT_TRUE(narrowed && narrowed->best);
    EXPECT_LE(narrowed->lower_bound, best + 1e-6) << "seed " << seed;
    EXPECT_NEAR(raw_cost(problem, *narrowed->best), narrowed->cost, 1e-9);
    EXPECT_GE(narrowed->cost, best - 1e-6);
    // Either the best known is optimal, or a better one is among what is kept.
    EXPECT_NEAR(std::min(narrowed->cost, optimum(restricted(problem, narrowed->kept))), best, 1e-6);
    for (size_t i = 0; i < narrowed->kept.size(); ++i) {
      EXPECT_EQ(narrowed->kept[i].size(), narrowed->slack[i].size());
      EXPECT_FALSE(narrowed->kept[i].empty());
    }
  }
}

TEST(Narrowing, StaysWithinMemory) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const FactoredProblem problem = random_problem(6, seed, true, 6);
    const Narrowed free = *narrow(problem, {.gap = 1e-9});
    const int64_t limit = peak_bytes(problem, *free.best) * 3 / 4;
    const double best = optimum_within(problem, limit);
    const std::optional<Narrowed> narrowed = narrow(problem, {.gap = 1e-9, .memory_limit = limit});
    ASSERT_TRUE(narrowed);
    EXPECT_LE(narrowed->lower_bound, best + 1e-6) << "seed " << seed;
    EXPECT_GE(narrowed->lower_bound, free.lower_bound * 0.9 - 1e-6) << "seed " << seed;
    if (!narrowed->best) continue;
    ++found;
    EXPECT_LE(peak_bytes(problem, *narrowed->best), limit);
    EXPECT_GE(narrowed->cost, best - 1e-6);
    EXPECT_NEAR(
        std::min(narrowed->cost, optimum_within(restricted(problem, narrowed->kept), limit)), best,
        1e-6);
  }
  EXPECT_GE(found, 6);
}

}  // namespace
}  // namespace shardrun
