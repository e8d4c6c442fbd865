// Repair: solutions that claim too much, on small random problems beside all solutions there are.
#include "planner/solver/descent/repair.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "base/at.h"
#include "tests/support/each_solution.h"

namespace shardrun {
namespace {

using test::each_solution;

struct Made {
  FactoredProblem problem;
  Problem claims;
};

/// A chain of nodes with three choices each: those that cost less claim more.
Made random_chain(uint64_t seed, int64_t limit) {
  std::mt19937_64 random(seed);
  const auto number = [&](int most) { return static_cast<double>(random() % at(most)); };
  Made out;
  out.claims.memory_limit = limit;
  constexpr int kNodes = 7, kChoices = 3;
  for (int i = 0; i < kNodes; ++i) {
    FactoredProblem::Node node;
    node.name = std::to_string(i);
    node.place = i;
    Problem::Claim claim{{}, {{i, i + 2}}};
    for (int a = 0; a < kChoices; ++a) {
      node.cost.push_back(1 + 4 * a + number(3));
      claim.bytes.push_back(10 - 4 * a + static_cast<int64_t>(number(3)));
    }
    node.claims.push_back(claim);
    out.claims.nodes.push_back({node.name, node.cost, node.claims});
    out.problem.nodes.push_back(std::move(node));
  }
  for (int i = 0; i + 1 < kNodes; ++i) {
    auto matrix = std::make_shared<FactoredProblem::Matrix>(kChoices, kChoices);
    for (size_t a = 0; a < kChoices; ++a) {
      for (size_t b = 0; b < kChoices; ++b) matrix->set(a, b, a == b ? 0 : number(4));
    }
    out.problem.edges.push_back({i, i + 1, 1, matrix, {0, 1, 2}, {0, 1, 2}});
  }
  return out;
}

class Repairs : public testing::TestWithParam<int64_t> {};

TEST_P(Repairs, WhatComesOutFitsAndNoCheaperChoiceDoes) {
  int possible = 0, repaired = 0;
  double over = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Made made = random_chain(seed, GetParam());
    const FlatProblem flat(made.claims);
    MemoryUse memory(flat);
    Repair repair(made.problem, memory);
    double best = kInfeasible;
    Solution cheapest;
    each_solution(made.problem, [&](const Solution& one) {
      if (cheapest.empty() || raw_cost(made.problem, one) < raw_cost(made.problem, cheapest))
        cheapest = one;
      if (peak_bytes(made.problem, one) <= GetParam())
        best = std::min(best, raw_cost(made.problem, one));
    });
    possible += best < kInfeasible;
    Solution found = cheapest;
    if (!repair.fit(found, all_kept(made.problem))) continue;
    ++repaired;
    const double cost = raw_cost(made.problem, found);
    EXPECT_LE(peak_bytes(made.problem, found), GetParam()) << "seed " << seed;
    EXPECT_GE(cost, best - 1e-9) << "seed " << seed;
    over += cost / best - 1;
    for (size_t i = 0; i < found.size(); ++i) {
      for (int a = 0; a < 3; ++a) {
        Solution other = found;
        other[i] = a;
        if (peak_bytes(made.problem, other) > GetParam()) continue;
        EXPECT_GE(raw_cost(made.problem, other), cost - 1e-9) << "seed " << seed << " node " << i;
      }
    }
  }
  EXPECT_GE(repaired, possible * 9 / 10);
  EXPECT_LE(over / repaired, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Limits, Repairs, testing::Values(16, 20, 25, 60));

TEST(Repair, StopsWhereNothingTakesBytesAway) {
  const Made made = random_chain(1, 3);  // less than the least of three claims
  const FlatProblem flat(made.claims);
  MemoryUse memory(flat);
  Solution solution(made.problem.nodes.size(), 0);
  EXPECT_FALSE(Repair(made.problem, memory).fit(solution, all_kept(made.problem)));
}

TEST(Repair, TakesAllowedChoicesAlone) {
  const Made made = random_chain(2, 20);
  const FlatProblem flat(made.claims);
  MemoryUse memory(flat);
  Kept allowed = all_kept(made.problem);
  allowed[3] = {0};
  Solution solution(made.problem.nodes.size(), 0);
  ASSERT_TRUE(Repair(made.problem, memory).fit(solution, allowed));
  EXPECT_EQ(solution[3], 0);
  EXPECT_LE(peak_bytes(made.problem, solution), 20);
}

}  // namespace
}  // namespace shardrun
