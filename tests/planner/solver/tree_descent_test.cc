// Descents by trees: exact where the problem is one, never worse than what they begin with.
#include "planner/solver/descent/tree_descent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/factored_problems.h"

namespace shardrun {
namespace {

using test::optimum_within;
using test::random_problem;

Solution random_solution(const FactoredProblem& problem, std::mt19937_64& random) {
  Solution out;
  for (const FactoredProblem::Node& node : problem.nodes)
    out.push_back(static_cast<int>(random() % node.cost.size()));
  return out;
}

/// Each node but the first hangs at an earlier one, twice if `doubled`.
FactoredProblem random_tree(int size, uint64_t seed, bool doubled) {
  std::mt19937_64 random(seed);
  const auto cost = [&] { return static_cast<double>(random() % 1000); };
  FactoredProblem out;
  for (int i = 0; i < size; ++i) {
    out.nodes.push_back({"n" + std::to_string(i), {cost(), cost(), cost()}, {}, double(i)});
    for (int edges = i == 0    ? 0
                     : doubled ? 2
                               : 1,
             to = i == 0 ? 0 : int(random() % i);
         edges > 0; --edges) {
      auto matrix = std::make_shared<FactoredProblem::Matrix>(2, 3);
      for (size_t r = 0; r < 2; ++r) {
        for (size_t c = 0; c < 3; ++c) matrix->set(r, c, cost());
      }
      // Both directions occur.
      const bool up = random() % 2 == 0;
      FactoredProblem::Edge edge{up ? i : to, up ? to : i, 0.5, matrix, {0, 1, 0}, {2, 0, 1}};
      out.edges.push_back(std::move(edge));
    }
  }
  return out;
}

TEST(Forest, HasNoCycleAndLacksNoNodeThatCouldJoin) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    const int size = 3 + static_cast<int>(random() % 12);
    std::vector<std::vector<int>> neighbours(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < i; ++j) {
        if (random() % 3 != 0) continue;
        neighbours[static_cast<size_t>(i)].push_back(j);
        neighbours[static_cast<size_t>(j)].push_back(i);
      }
    }
    std::vector<int> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const Forest forest = induced_forest(neighbours, order);
    // In a forest there are as many edges as nodes that are no root, and parents come first.
    size_t edges = 0, children = 0;
    std::vector<bool> seen(static_cast<size_t>(size), false);
    for (int i : forest.visit) {
      const int parent = forest.parent[static_cast<size_t>(i)];
      children += parent >= 0;
      EXPECT_TRUE(parent < 0 || seen[static_cast<size_t>(parent)]);
      seen[static_cast<size_t>(i)] = true;
      for (int other : neighbours[static_cast<size_t>(i)])
        edges += forest.member[static_cast<size_t>(other)];
    }
    EXPECT_EQ(edges, 2 * children);
    EXPECT_EQ(seen, forest.member);
    // Who did not join has two neighbours in one tree.
    for (int i = 0; i < size; ++i) {
      if (forest.member[static_cast<size_t>(i)]) continue;
      std::vector<int> roots;
      for (int other : neighbours[static_cast<size_t>(i)]) {
        if (!forest.member[static_cast<size_t>(other)]) continue;
        while (forest.parent[static_cast<size_t>(other)] >= 0)
          other = forest.parent[static_cast<size_t>(other)];
        roots.push_back(other);
      }
      std::sort(roots.begin(), roots.end());
      EXPECT_NE(std::adjacent_find(roots.begin(), roots.end()), roots.end());
    }
  }
}

TEST(TreeDescent, IsExactOnTrees) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FactoredProblem problem = random_tree(8, seed, seed % 4 == 0);
    const double least = optimum_within(problem, std::numeric_limits<int64_t>::max());
    const TreeDescent descent(problem);
    TreeDescentOptions options;
    options.seed = seed;
    options.patience = 8;  // of a doubled edge's ends only one moves at a time
    std::mt19937_64 random(seed);
    double found = kInfeasible;
    for (int start = 0; start < (seed % 4 == 0 ? 10 : 1); ++start) {
      const Solution solution = descent.improve(random_solution(problem, random), options);
      found = std::min(found, raw_cost(problem, solution));
      EXPECT_EQ(descent.cost(solution, options), raw_cost(problem, solution));
    }
    EXPECT_NEAR(found, least, 1e-9) << "seed " << seed;
  }
}

TEST(TreeDescent, IsNeverWorseThanItsStartAndTheSameAgain) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const FactoredProblem problem = random_problem(20, seed);
    const TreeDescent descent(problem);
    std::mt19937_64 random(seed);
    const Solution start = random_solution(problem, random);
    TreeDescentOptions options;
    options.seed = seed;
    const Solution found = descent.improve(start, options);
    EXPECT_LE(descent.cost(found, options), descent.cost(start, options));
    EXPECT_EQ(descent.improve(start, options), found);
    // No single choice is cheaper, for moves contain them.
    Solution other = found;
    for (size_t i = 0; i < other.size(); ++i) {
      for (size_t a = 0; a < problem.nodes[i].cost.size(); ++a) {
        other[i] = static_cast<int>(a);
        EXPECT_GE(raw_cost(problem, other), raw_cost(problem, found) * (1 - 1e-6)) << seed;
      }
      other[i] = found[i];
    }
  }
}

/// All have to be alike, and the last may not be 2: from a start that is far from allowed, and from
/// one that only its last choice forbids.
TEST(TreeDescent, LeavesWhatIsForbidden) {
  FactoredProblem problem;
  auto equal = std::make_shared<FactoredProblem::Matrix>(3, 3);
  for (size_t i = 0; i < 3; ++i) equal->set(i, i, 0);
  for (int i = 0; i < 6; ++i) {
    problem.nodes.push_back({std::to_string(i), {3, 2, i == 5 ? kInfeasible : 1.0}, {}, double(i)});
    if (i > 0) problem.edges.push_back({i - 1, i, 1, equal, {0, 1, 2}, {0, 1, 2}});
  }
  const TreeDescent descent(problem);
  EXPECT_GT(descent.cost({0, 1, 2, 0, 1, 2}, {}), 5e9);
  EXPECT_EQ(descent.improve({0, 1, 2, 0, 1, 2}, {}), Solution(6, 1));
  EXPECT_EQ(descent.improve(Solution(6, 2), {}), Solution(6, 1));
}

/// Of nodes that are alive at one time, as many as fit take what is faster.
TEST(TreeDescent, PaysForBytesThatAreTooMany) {
  FactoredProblem problem;
  for (int i = 0; i < 10; ++i) {
    FactoredProblem::Node node{std::to_string(i), {1, 2}, {}, double(i)};
    node.claims.push_back({{100, 10}, {{0, 4}}});
    problem.nodes.push_back(std::move(node));
  }
  const TreeDescent descent(problem);
  TreeDescentOptions options;
  options.memory_limit = 550;
  options.byte_seconds = 1;
  const Solution found = descent.improve(Solution(10, 0), options);
  EXPECT_LE(peak_bytes(problem, found), 550);
  options.memory_limit = 0;
  EXPECT_EQ(raw_cost(problem, descent.improve(Solution(10, 1), options)), 10);
}

}  // namespace
}  // namespace shardrun
