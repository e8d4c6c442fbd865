// Solvers by name: files in both forms, all solvers against exhaustive search, a node budget, a
// time limit.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "base/error.h"
#include "planner/problem_file.h"
#include "planner/solver.h"

namespace shardrun {
namespace {

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

double exhaustive(const Problem& problem) {
  Solution solution(problem.nodes.size(), 0);
  double best = kInfeasible;
  for (;;) {
    best = std::min(best, evaluate(problem, solution).cost);
    size_t i = 0;
    while (i < solution.size() && ++solution[i] == static_cast<int>(problem.nodes[i].cost.size()))
      solution[i++] = 0;
    if (i == solution.size()) return best;
  }
}

constexpr char kContest[] = R"({"problem": {"name": "tiny", "nodes": {
  "intervals": [[0, 2], [1, 3], [0, 0]], "costs": [[1, 5], [2, 3], [0, 1000000000000000000]],
  "usages": [[10, 4], [10, 7], [99, 1]]},
  "edges": {"nodes": [[0, 1], [1, 2], [0, 1]], "costs": [[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1]]},
  "usage_limit": 15}})";

TEST(ProblemFile, ReadsTheContestsForm) {
  const Problem problem = parse_problem(kContest);
  ASSERT_EQ(problem.nodes.size(), 3u);
  ASSERT_EQ(problem.edges.size(), 3u);
  EXPECT_EQ(problem.memory_limit, 15);
  EXPECT_EQ(problem.nodes[0].claims[0].live[0], (Problem::Interval{0, 1}));
  EXPECT_TRUE(problem.nodes[2].claims.empty());  // [0, 0] holds nothing
  EXPECT_EQ(problem.nodes[2].cost[1], kInfeasible);
  // At time 1 both live: 10 + 7 and 10 + 10 are too much. [1, 0]: 5 + 2 + 2 + 1 = 10; [1, 1]: 5 + 3
  // + 3 + 1.
  EXPECT_EQ(evaluate(problem, {0, 0, 0}).cost, kInfeasible);
  EXPECT_EQ(evaluate(problem, {1, 0, 0}).cost, 10);
  for (const char* solver : {"auto", "ilp", "beam", "lns", "beam+lns"}) {
    SolveOptions options;
    options.seconds = 1;
    options.nodes = 1000;
    const SolveResult result = solve(problem, solver, options);
    ASSERT_TRUE(result.solution) << solver;
    EXPECT_EQ(solution_json(*result.solution), "[1, 0, 0]") << solver;
  }
}

TEST(ProblemFile, OwnFormComesBackEqual) {
  const Problem problem = random_problem(3, 8, 4);
  const Problem back = parse_problem(problem_json(problem));
  ASSERT_EQ(back.nodes.size(), problem.nodes.size());
  EXPECT_EQ(problem_json(back), problem_json(problem));
  EXPECT_EQ(back.memory_limit, problem.memory_limit);
}

TEST(ProblemFile, SaysWhatIsWrong) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_problem(text, "p.json");
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_input);
      return error.what();
    }
  };
  EXPECT_NE(message("").find("p.json: at byte 0"), std::string::npos);
  EXPECT_NE(message(R"({"nodes": [{"cost": [1, x]}]})").find("wanted a number"), std::string::npos);
  EXPECT_NE(message(R"({"nodes": [{"cost": [1]}], "edges": [{"from": 0, "to": 4, "cost": [1]}]})")
                .find("joins nodes 0 and 4 of 1"),
            std::string::npos);
  EXPECT_NE(message(std::string(kContest).substr(0, 200)), "");
}

TEST(Solve, AllSolversAgainstExhaustiveSearch) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Problem problem = random_problem(seed, 9, 4);
    const double best = exhaustive(problem);
    for (const char* solver : {"auto", "ilp", "beam", "lns"}) {
      SolveOptions options;
      options.seconds = 2;
      options.nodes = 20000;
      options.beam_width = 4096;
      const SolveResult result = solve(problem, solver, options);
      if (best == kInfeasible) {
        EXPECT_FALSE(result.solution) << solver;
        continue;
      }
      ASSERT_TRUE(result.solution) << solver;
      EXPECT_EQ(evaluate(problem, *result.solution).cost, result.cost) << solver;
      EXPECT_LE(result.lower_bound, best * (1 + 1e-9)) << solver;
      if (std::string(solver) == "beam") {
        EXPECT_GE(result.cost, best);
      } else {
        EXPECT_DOUBLE_EQ(result.cost, best) << solver;
      }
    }
  }
}

TEST(Solve, EqualBudgetsGiveEqualChoices) {
  const Problem problem = random_problem(5, 200, 6);
  SolveOptions options;
  options.seconds = 60;
  options.nodes = 100000;
  options.threads = 2;
  options.seed = 9;
  const SolveResult first = solve_lns(problem, options), second = solve_lns(problem, options);
  ASSERT_TRUE(first.solution);
  EXPECT_EQ(first.solution, second.solution);
  EXPECT_LE(first.lower_bound, first.cost);
  EXPECT_LT(first.seconds, 30);
}

TEST(Solve, ReturnsInTime) {
  const Problem problem = random_problem(6, 3000, 8);
  for (const char* solver : {"auto", "lns", "beam"}) {
    SolveOptions options;
    options.seconds = 1.5;
    const auto begin = std::chrono::steady_clock::now();
    solve(problem, solver, options);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 8)
        << solver;
  }
}

TEST(Solve, UnknownSolverIsNamed) { EXPECT_THROW(solve(Problem{}, "simplex", {}), Error); }

}  // namespace
}  // namespace shardrun
