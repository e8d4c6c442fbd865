// Solvers by name: all against exhaustive search, a node budget, a time limit, no solution.
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "base/error.h"
#include "planner/contest/problem_file.h"
#include "planner/solver/solver.h"
#include "tests/support/each_solution.h"

namespace shardrun {
namespace {

using test::optimum;

Problem random_problem(uint64_t seed, int nodes, int most) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Problem problem;
  int64_t least = 0, largest = 0;
  for (int i = 0; i < nodes; ++i) {
    Problem::Node node;
    const int count = 1 + below(most);
    std::vector<int64_t> bytes;
    for (int a = 0; a < count; ++a) {
      node.cost.push_back(below(50));
      bytes.push_back(below(20));
    }
    const int first = below(6);
    node.claims.push_back({bytes, {{first, first + below(4)}}});
    least += *std::min_element(bytes.begin(), bytes.end());
    largest += *std::max_element(bytes.begin(), bytes.end());
    problem.nodes.push_back(node);
  }
  for (int e = 0; e < nodes * 3 / 2; ++e) {
    const int from = below(nodes), to = below(nodes);
    if (from == to) continue;
    std::vector<double> cost;
    for (size_t k = 0; k < problem.nodes[static_cast<size_t>(from)].cost.size() *
                               problem.nodes[static_cast<size_t>(to)].cost.size();
         ++k)
      cost.push_back(below(60));
    problem.edges.push_back({from, to, cost});
  }
  problem.memory_limit = (least + largest) / 3;
  return problem;
}

constexpr char kContest[] = R"({"problem": {"name": "tiny", "nodes": {
  "intervals": [[0, 2], [1, 3], [0, 0]], "costs": [[1, 5], [2, 3], [0, 1000000000000000000]],
  "usages": [[10, 4], [10, 7], [99, 1]]},
  "edges": {"nodes": [[0, 1], [1, 2], [0, 1]], "costs": [[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1]]},
  "usage_limit": 15}})";

TEST(Solve, FindsTheOptimumOfTheContestsForm) {
  const Problem problem = parse_problem(kContest);
  // At time 1 nodes 0 and 1 live: 10 + 7 and 10 + 10 are too much. [1, 0]: 5 + 2 + 2 + 1 = 10;
  // [1, 1]: 5 + 3 + 3 + 1.
  for (const SolverKind solver : {SolverKind::automatic, SolverKind::ilp, SolverKind::beam,
                                  SolverKind::lns, SolverKind::beam_lns}) {
    SolveOptions options;
    options.seconds = 1;
    options.nodes = 1000;
    const SolveResult result = solve(problem, solver, options);
    ASSERT_TRUE(result.solution) << name_of(kSolvers, solver);
    EXPECT_EQ(*result.solution, (Solution{1, 0, 0})) << name_of(kSolvers, solver);
  }
}

TEST(Solve, AllSolversAgainstExhaustiveSearch) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Problem problem = random_problem(seed, 9, 4);
    const double best = optimum(problem);
    for (const SolverKind solver :
         {SolverKind::automatic, SolverKind::ilp, SolverKind::beam, SolverKind::lns}) {
      SolveOptions options;
      options.seconds = 2;
      options.nodes = 20000;
      options.beam_width = 4096;
      const SolveResult result = solve(problem, solver, options);
      if (best == kInfeasible) {
        EXPECT_FALSE(result.solution) << name_of(kSolvers, solver);
        continue;
      }
      ASSERT_TRUE(result.solution) << name_of(kSolvers, solver);
      EXPECT_EQ(evaluate(problem, *result.solution).cost, result.cost) << name_of(kSolvers, solver);
      EXPECT_LE(result.lower_bound, best * (1 + 1e-9)) << name_of(kSolvers, solver);
      if (solver == SolverKind::beam) {
        EXPECT_GE(result.cost, best);
      } else {
        EXPECT_DOUBLE_EQ(result.cost, best) << name_of(kSolvers, solver);
      }
    }
  }
}

TEST(Solve, EqualBudgetsGiveEqualChoices) {
  Problem problem = random_problem(5, 300, 8);
  problem.memory_limit = least_bytes(problem).bytes * 6 / 5;
  SolveOptions options;
  options.seconds = 60;
  options.nodes = 3000000;  // several rounds of neighbourhoods
  options.threads = 2;
  options.seed = 9;
  const SolveResult first = solve_lns(problem, options), second = solve_lns(problem, options);
  ASSERT_TRUE(first.solution);
  EXPECT_EQ(first.solution, second.solution);
  EXPECT_LT(first.lower_bound, first.cost);  // the budget ended it
}

/// Pairs of nodes of which one has to take two bytes and the other one; at time 3 all of them live.
Problem pairs_at_one_time(int pairs, int64_t limit) {
  Problem problem;
  for (int i = 0; i < 2 * pairs; ++i) {
    problem.nodes.push_back(
        {"n" + std::to_string(i), {1.0 * (i % 5), 0.0}, {{{1, 2}, {{i % 2 == 0 ? 2 : 3, 3}}}}});
  }
  for (int i = 0; i < pairs; ++i)
    problem.edges.push_back({2 * i, 2 * i + 1, {kInfeasible, 0.0, 0.0, kInfeasible}});
  problem.memory_limit = limit;
  return problem;
}

TEST(Solve, TellsTheClosestIfNothingFits) {
  constexpr int kPairs = 30;
  const Problem problem = pairs_at_one_time(kPairs, 3 * kPairs - 1);
  EXPECT_EQ(least_bytes(problem).bytes, 2 * kPairs);  // the edges aside
  EXPECT_EQ(least_bytes(problem).time, 3);
  for (const SolverKind solver : {SolverKind::automatic, SolverKind::lns, SolverKind::ilp}) {
    SCOPED_TRACE(name_of(kSolvers, solver));
    SolveOptions options;
    options.seconds = 60;
    options.nodes = 3000;
    const SolveResult result = solve(problem, solver, options);
    EXPECT_FALSE(result.solution);
    EXPECT_EQ(result.proven_infeasible, solver != SolverKind::lns);
    ASSERT_TRUE(result.tightest);
    EXPECT_EQ(evaluate(problem, *result.tightest).peak_bytes, 3 * kPairs);
    EXPECT_EQ(evaluate(problem, *result.tightest).peak_time, 3);
  }
  // One byte more is enough.
  const Problem fits = pairs_at_one_time(kPairs, 3 * kPairs);
  const SolveResult result = solve(fits, SolverKind::lns, {.seconds = 20, .nodes = 3000});
  ASSERT_TRUE(result.solution);
  EXPECT_EQ(evaluate(fits, *result.solution).peak_bytes, 3 * kPairs);
}

TEST(Solve, ProvesThatTheLeastBytesAreTooMany) {
  Problem problem = random_problem(8, 40, 5);
  problem.memory_limit = least_bytes(problem).bytes - 1;
  for (const SolverKind solver :
       {SolverKind::automatic, SolverKind::lns, SolverKind::beam, SolverKind::ilp}) {
    const SolveResult result = solve(problem, solver, {.seconds = 20});
    EXPECT_FALSE(result.solution) << name_of(kSolvers, solver);
    EXPECT_TRUE(result.proven_infeasible) << name_of(kSolvers, solver);
  }
}

TEST(Solve, ReturnsInTime) {
  const Problem problem = random_problem(6, 3000, 8);
  for (const SolverKind solver : {SolverKind::automatic, SolverKind::lns, SolverKind::beam}) {
    SolveOptions options;
    options.seconds = 1.5;
    const std::clock_t begin = std::clock();  // of this process: the machine may be busy
    solve(problem, solver, options);
    EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 8) << name_of(kSolvers, solver);
  }
}

}  // namespace
}  // namespace shardrun
