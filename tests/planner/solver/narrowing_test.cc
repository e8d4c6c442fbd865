// Narrowing keeps the best solution and bounds it, with and without a memory limit.
#include "planner/solver/narrowing.h"

#include <gtest/gtest.h>

#include <random>

#include "planner/solver/deadline.h"
#include "planner/solver/descent/tree_descent.h"
#include "planner/solver/factored_bound.h"
#include "planner/solver/solver.h"
#include "tests/support/factored_problems.h"

namespace shardrun {
namespace {

using test::optimum_within;
using test::random_problem;

double optimum(const FactoredProblem& problem) {
  SolveOptions options;
  options.seconds = 20;
  const SolveResult result = solve_ilp(dense(problem), options);
  return result.solution ? result.cost : kInfeasible;
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
void expect_slacks_hold(const FactoredBound& bound, const FactoredProblem& problem) {
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    for (size_t a = 0; a < problem.nodes[i].cost.size(); ++a) {
      Kept kept = all_kept(problem);
      kept[i] = {static_cast<int>(a)};
      EXPECT_LE(bound.bound_before_sweep() + bound.slack(static_cast<int>(i))[a],
                optimum(restricted(problem, kept)) + 1e-6);
    }
  }
}

TEST(FactoredBound, SlacksHold) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const FactoredProblem problem = random_problem(9, seed);
    FactoredBound bound(problem);
    for (int sweep = 0; sweep < 10; ++sweep) bound.sweep();
    expect_slacks_hold(bound, problem);
  }
}

// So they do where costs were added, if the bound is found anew before the sweep.
TEST(FactoredBound, SlacksHoldWithAddedCosts) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    FactoredProblem problem = random_problem(9, seed);
    FactoredBound bound(problem);
    for (int sweep = 0; sweep < 10; ++sweep) bound.sweep(false);
    for (size_t i = 0; i < problem.nodes.size(); i += 2) {
      std::vector<double> more(problem.nodes[i].cost.size(), 0.0);
      more[0] = 3;
      problem.nodes[i].cost[0] += 3;
      bound.add_cost(static_cast<int>(i), more);
    }
    bound.find_bound();
    bound.sweep();
    EXPECT_GT(bound.bound_before_sweep(), 0) << "seed " << seed;
    EXPECT_GE(raw_cost(problem, bound.decoded()), optimum(problem) - 1e-6);
    expect_slacks_hold(bound, problem);
  }
}

TEST(Narrowing, KeepsAnOptimalSolution) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const FactoredProblem problem = random_problem(25, seed);
    const double best = optimum(problem);
    const std::optional<Narrowed> narrowed = narrow(problem, {.gap = 1e-9});
    ASSERT_TRUE(narrowed && narrowed->solution);
    EXPECT_LE(narrowed->lower_bound, best + 1e-6) << "seed " << seed;
    EXPECT_NEAR(raw_cost(problem, *narrowed->solution), narrowed->cost, 1e-9);
    EXPECT_GE(narrowed->cost, best - 1e-6);
    // Either the best known is optimal, or a better one is among what is kept.
    EXPECT_NEAR(std::min(narrowed->cost, optimum(restricted(problem, narrowed->kept))), best, 1e-6);
    for (size_t i = 0; i < narrowed->kept.size(); ++i) {
      EXPECT_EQ(narrowed->kept[i].size(), narrowed->slack[i].size());
      EXPECT_FALSE(narrowed->kept[i].empty());
    }
  }
}

// Where messages stall, whole trees choose anew: no worse than without, and better now and then.
TEST(Narrowing, TreesDescendWhereMessagesStall) {
  int better = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const FactoredProblem problem = random_problem(60, seed);
    const Narrowed with = *narrow(problem, {.gap = 1e-9}),
                   without = *narrow(problem, {.gap = 1e-9, .descends = false});
    ASSERT_TRUE(with.solution && without.solution);
    EXPECT_LE(with.cost, without.cost) << "seed " << seed;
    better += with.cost < without.cost;
    TreeDescentOptions few;
    few.patience = 2;  // along the graph, and against it
    const Solution after = TreeDescent(problem).improve(*without.solution, few);
    EXPECT_LE(with.cost, raw_cost(problem, after) + 1e-9) << "seed " << seed;
  }
  EXPECT_GT(better, 0);
}

TEST(Narrowing, StaysWithinMemory) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const FactoredProblem problem = random_problem(6, seed, true, 6);
    const Narrowed free = *narrow(problem, {.gap = 1e-9});
    const int64_t limit = peak_bytes(problem, *free.solution) * 3 / 4;
    const double best = optimum_within(problem, limit);
    const std::optional<Narrowed> narrowed = narrow(problem, {.gap = 1e-9, .memory_limit = limit});
    ASSERT_TRUE(narrowed);
    EXPECT_LE(narrowed->lower_bound, best + 1e-6) << "seed " << seed;
    EXPECT_GE(narrowed->lower_bound, free.lower_bound * 0.9 - 1e-6) << "seed " << seed;
    if (!narrowed->solution) continue;
    ++found;
    EXPECT_LE(peak_bytes(problem, *narrowed->solution), limit);
    EXPECT_GE(narrowed->cost, best - 1e-6);
    EXPECT_NEAR(
        std::min(narrowed->cost, optimum_within(restricted(problem, narrowed->kept), limit)), best,
        1e-6);
  }
  EXPECT_GE(found, 6);
}

// A limited search that has found what fits ends when nothing better comes for so long.
TEST(Narrowing, PatienceEndsALimitedSearch) {
  const FactoredProblem problem = random_problem(40, 3, true);
  const int64_t limit = peak_bytes(problem, *narrow(problem, {.gap = 1e-9})->solution) * 3 / 4;
  const auto work_of = [&](int patience, std::optional<Narrowed>& found) {
    const double begin = work_seconds();
    found = narrow(problem, {.gap = 1e-9, .memory_limit = limit, .patience = patience});
    return work_seconds() - begin;
  };
  std::optional<Narrowed> patient, hasty;
  const double whole = work_of(0, patient);
  EXPECT_LT(work_of(2, hasty), whole / 2);
  ASSERT_TRUE(patient->solution && hasty->solution);
  EXPECT_LE(peak_bytes(problem, *hasty->solution), limit);
  EXPECT_LE(patient->cost, hasty->cost);
}

}  // namespace
}  // namespace shardrun
