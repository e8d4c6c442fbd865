// Random FactoredProblems, and their optimum by trying everything.
#pragma once

#include <algorithm>
#include <random>

#include "planner/solver/factored_problem.h"
#include "tests/support/each_solution.h"

namespace shardrun::test {

/// A layered graph of `count` nodes whose edges see a few rows and columns of shared matrices.
inline FactoredProblem random_problem(int count, uint64_t seed, bool with_claims = false,
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

inline double optimum_within(const FactoredProblem& problem, int64_t limit) {
  double best = kInfeasible;
  each_solution(problem, [&](const Solution& solution) {
    if (peak_bytes(problem, solution) <= limit) best = std::min(best, raw_cost(problem, solution));
  });
  return best;
}

}  // namespace shardrun::test
