// Bound against exhaustive search: the bound, and what it says of strategies and of pairs.
#include "planner/solver/bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/each_solution.h"

namespace shardrun {
namespace {

using test::each_solution;

Problem random_problem(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Problem problem;
  constexpr int kNodes = 7;
  for (int i = 0; i < kNodes; ++i) {
    Problem::Node& node = problem.nodes.emplace_back();
    for (int a = 0; a < 2 + below(2); ++a) node.cost.push_back(below(30));
  }
  for (int e = 0; e < 11; ++e) {
    const int from = below(kNodes), to = below(kNodes);
    if (from == to) continue;
    Problem::Edge& edge = problem.edges.emplace_back(Problem::Edge{from, to, {}});
    const size_t pairs = problem.nodes[static_cast<size_t>(from)].cost.size() *
                         problem.nodes[static_cast<size_t>(to)].cost.size();
    for (size_t k = 0; k < pairs; ++k) edge.cost.push_back(below(40));
  }
  return problem;
}

TEST(Bound, SaysWhatStrategiesAndPairsCostAtLeast) {
  constexpr double kRounding = 1e-9;
  int exact = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Problem problem = random_problem(seed);
    double best = kInfeasible;
    std::vector<std::vector<double>> of_strategy(problem.nodes.size()),
        of_pair(problem.edges.size());
    for (size_t i = 0; i < problem.nodes.size(); ++i)
      of_strategy[i].assign(problem.nodes[i].cost.size(), kInfeasible);
    for (size_t e = 0; e < problem.edges.size(); ++e)
      of_pair[e].assign(problem.edges[e].cost.size(), kInfeasible);
    const auto pair_of = [&](size_t e, int from, int to) {
      return static_cast<size_t>(from) *
                 problem.nodes[static_cast<size_t>(problem.edges[e].to)].cost.size() +
             static_cast<size_t>(to);
    };
    each_solution(problem, [&](const Solution& solution) {
      const double cost = raw_cost(problem, solution);
      best = std::min(best, cost);
      for (size_t i = 0; i < solution.size(); ++i) {
        double& least = of_strategy[i][static_cast<size_t>(solution[i])];
        least = std::min(least, cost);
      }
      for (size_t e = 0; e < problem.edges.size(); ++e) {
        const Problem::Edge& edge = problem.edges[e];
        double& least = of_pair[e][pair_of(e, solution[static_cast<size_t>(edge.from)],
                                           solution[static_cast<size_t>(edge.to)])];
        least = std::min(least, cost);
      }
    });
    Bound bound(problem);
    for (int sweep = 0; sweep < 30; ++sweep) bound.sweep();
    std::vector<int> visits(problem.edges.size(), 0);
    bound.sweep([&](int e, int node, int other, const double* slack, size_t stride) {
      ++visits[static_cast<size_t>(e)];
      const bool forward = problem.edges[static_cast<size_t>(e)].from == node;
      const size_t others = problem.nodes[static_cast<size_t>(other)].cost.size();
      for (size_t b = 0; b < others; ++b) {
        for (size_t a = 0; a < stride; ++a) {
          const int from = static_cast<int>(forward ? a : b),
                    to = static_cast<int>(forward ? b : a);
          EXPECT_LE(bound.bound_before_sweep() + slack[b * stride + a],
                    of_pair[static_cast<size_t>(e)][pair_of(static_cast<size_t>(e), from, to)] +
                        kRounding)
              << "edge " << e << ", strategies " << from << " and " << to;
        }
      }
    });
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), static_cast<int>(visits.size()));
    EXPECT_LE(bound.bound(), best + kRounding);
    exact += bound.bound() >= best - kRounding ? 1 : 0;
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      for (size_t a = 0; a < of_strategy[i].size(); ++a) {
        EXPECT_LE(bound.bound_before_sweep() + bound.slack(static_cast<int>(i))[a],
                  of_strategy[i][a] + kRounding)
            << "node " << i << ", strategy " << a;
      }
    }
  }
  EXPECT_GE(exact, 5);  // not all of them are loose
}

}  // namespace
}  // namespace shardrun
