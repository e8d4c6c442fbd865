// Solutions near the cheapest, against all of small problems.
#include "planner/near_solutions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/at.h"

namespace shardrun {
namespace {

constexpr int kNodes = 6, kChoices = 3;

/// Nodes in a row, each with an edge to the next, or in a ring.
FactoredProblem chain(std::mt19937_64& random, bool closed) {
  const auto cost = [&] { return 1000 + static_cast<double>(random() % 100); };
  FactoredProblem out;
  for (int i = 0; i < kNodes; ++i) {
    out.nodes.push_back({"n" + std::to_string(i), {}, {}, double(i)});
    for (int c = 0; c < kChoices; ++c) out.nodes.back().cost.push_back(cost());
  }
  for (int i = 0; i + 1 < kNodes + closed; ++i) {
    auto matrix = std::make_shared<FactoredProblem::Matrix>(kChoices, kChoices);
    matrix->forbids = false;
    for (size_t r = 0; r < kChoices; ++r) {
      for (size_t c = 0; c < kChoices; ++c) matrix->set(r, c, cost());
    }
    out.edges.push_back({i, (i + 1) % kNodes, 1, matrix, {0, 1, 2}, {0, 1, 2}});
  }
  return out;
}

std::vector<Solution> all_solutions() {
  std::vector<Solution> out;
  for (int k = 0; k < 729; ++k) {
    Solution& one = out.emplace_back(kNodes);
    for (int i = 0, rest = k; i < kNodes; ++i, rest /= kChoices) one[at(i)] = rest % kChoices;
  }
  return out;
}

Solution cheapest_of(const FactoredProblem& problem, const std::vector<Solution>& all) {
  return *std::min_element(all.begin(), all.end(), [&](const Solution& a, const Solution& b) {
    return raw_cost(problem, a) < raw_cost(problem, b);
  });
}

/// Every choice that some near solution makes is made by one that is found, or by the cheapest; and
/// each that is found is the cheapest with some choice, which messages around a ring don't promise.
TEST(NearSolutions, AreTheCheapestWithOtherChoices) {
  std::mt19937_64 random(3);
  const std::vector<Solution> all = all_solutions();
  size_t several = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const bool closed = round % 2 == 1;
    const FactoredProblem problem = chain(random, closed);
    const Solution cheapest = cheapest_of(problem, all);
    NearOptions options;
    options.gap = 1e-9;
    options.tries = 100;
    const double most = raw_cost(problem, cheapest) * (1 + options.spare);
    const std::vector<Solution> found = near_solutions(problem, cheapest, options);
    several += found.size() > 2;
    for (const Solution& one : found) {
      EXPECT_LE(raw_cost(problem, one), most);
      EXPECT_NE(one, cheapest);
      bool is_least = closed;
      for (size_t i = 0; i < kNodes; ++i) {
        std::vector<Solution> with;
        for (const Solution& other : all) {
          if (other[i] == one[i]) with.push_back(other);
        }
        is_least = is_least || (one[i] != cheapest[i] && cheapest_of(problem, with) == one);
      }
      EXPECT_TRUE(is_least);
    }
    for (const Solution& near : all) {
      if (raw_cost(problem, near) > most) continue;
      for (size_t i = 0; i < kNodes; ++i) {
        const bool known = near[i] == cheapest[i] ||
                           std::any_of(found.begin(), found.end(),
                                       [&](const Solution& one) { return one[i] == near[i]; });
        EXPECT_TRUE(known) << "node " << i << " choice " << near[i];
      }
    }
  }
  EXPECT_GT(several, 10U);
}

TEST(NearSolutions, EndWithTheirTries) {
  std::mt19937_64 random(3);
  const std::vector<Solution> all = all_solutions();
  for (int round = 0; round < 10; ++round) {
    const FactoredProblem problem = chain(random, false);
    const Solution cheapest = cheapest_of(problem, all);
    NearOptions options;
    const std::vector<Solution> most = near_solutions(problem, cheapest, options);
    EXPECT_EQ(near_solutions(problem, cheapest, options), most);
    options.tries = 1;
    const std::vector<Solution> one = near_solutions(problem, cheapest, options);
    ASSERT_LE(one.size(), 1U);
    for (const Solution& only : one) EXPECT_EQ(only, most[0]);
    options.tries = 0;
    EXPECT_TRUE(near_solutions(problem, cheapest, options).empty());
  }
}

}  // namespace
}  // namespace shardrun
