// evaluate and check_problem on cases worked by hand, and the reductions' way back.
#include "planner/solver/problem.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planner/solver/memory_use.h"
#include "planner/solver/presolve/reductions.h"

namespace shardrun {
namespace {

/// Two nodes of two strategies; "a" is alive during [0,1], "b" during [1,2].
Problem two_nodes() {
  Problem p;
  p.nodes = {{"a", {1, 2}, {{{100, 10}, {{0, 1}}}}}, {"b", {3, 5}, {{{60, 6}, {{1, 2}}}}}};
  p.edges = {{0, 1, {0, 7, 4, kInfeasible}}};
  return p;
}

TEST(Evaluate, SumsNodesAndEdges) {
  const Problem p = two_nodes();
  EXPECT_EQ(evaluate(p, {0, 0}).cost, 4);   // 1 + 3 + 0
  EXPECT_EQ(evaluate(p, {0, 1}).cost, 13);  // 1 + 5 + 7
  EXPECT_EQ(evaluate(p, {1, 0}).cost, 9);   // 2 + 3 + 4
  EXPECT_EQ(evaluate(p, {1, 1}).cost, kInfeasible);
}

TEST(Evaluate, PeakIsWhereIntervalsOverlap) {
  Problem p = two_nodes();
  Evaluation e = evaluate(p, {0, 0});
  EXPECT_EQ(e.peak_bytes, 160);
  EXPECT_EQ(e.peak_time, 1);
  p.memory_limit = 159;
  EXPECT_EQ(evaluate(p, {0, 0}).cost, kInfeasible);
  EXPECT_EQ(evaluate(p, {0, 0}).raw_cost, 4);
  EXPECT_EQ(evaluate(p, {1, 0}).cost, 9);  // 10 + 60
  // A node that stands for two members, both alive at time 1, counts twice there.
  p.nodes[0].claims[0].live = {{0, 1}, {1, 3}};
  EXPECT_EQ(evaluate(p, {0, 0}).peak_bytes, 260);
}

TEST(Evaluate, RefusesSolutionsOfTheWrongForm) {
  const Problem p = two_nodes();
  EXPECT_THROW(evaluate(p, {0}), Error);
  EXPECT_THROW(evaluate(p, {0, 2}), Error);
  EXPECT_THROW(evaluate(p, {0, -1}), Error);
}

TEST(CheckProblem, NamesWhatIsWrong) {
  Problem p = two_nodes();
  EXPECT_NO_THROW(check_problem(p));
  p.edges[0].cost.pop_back();
  EXPECT_THROW(check_problem(p), Error);
  p = two_nodes();
  p.edges[0].to = 0;
  EXPECT_THROW(check_problem(p), Error);
  p = two_nodes();
  p.nodes[1].claims[0].bytes = {1};
  EXPECT_THROW(check_problem(p), Error);
}

TEST(MemoryUse, KeepsOnlyTimesThatMatter) {
  Problem p;
  p.memory_limit = 100;
  p.nodes = {
      {"a", {0}, {{{1}, {{0, 3}}}}}, {"b", {0}, {{{2}, {{1, 1}}}}}, {"c", {0}, {{{4}, {{2, 3}}}}}};
  const FlatProblem flat(p);
  MemoryUse use(flat);
  EXPECT_EQ(use.times(), 2u);  // 1: a and b; 3: a and c
  use.reset({0, 0, 0});
  EXPECT_EQ(use.use(), (std::vector<int64_t>{3, 5}));
}

// Intervals of one claim may overlap: its bytes are there twice at time 1, and cost twice there.
TEST(MemoryUse, CountsOverlappingIntervals) {
  Problem p;
  p.memory_limit = 100;
  p.nodes = {{"a", {0, 0}, {{{1, 10}, {{0, 1}, {1, 3}}}}}, {"b", {0}, {{{5}, {{3, 3}}}}}};
  const FlatProblem flat(p);
  MemoryUse use(flat);
  use.reset({0, 0});
  EXPECT_EQ(use.use(), (std::vector<int64_t>{2, 6}));
  use.change(0, 0, 1);
  EXPECT_EQ(use.use(), (std::vector<int64_t>{20, 15}));
  EXPECT_EQ(use.priced(0, {0.5, 2}), (std::vector<double>{3, 30}));  // 0.5 x 2 + 2 x 1 a byte
}

TEST(Incumbent, IsTheBestThatFitsAndTheTightestOfAll) {
  Incumbent seen;
  EXPECT_FALSE(seen.offer({0}, kInfeasible, 1, false));  // forbidden: not the tightest either
  EXPECT_FALSE(seen.offer({1}, 2, 30, false));
  EXPECT_TRUE(seen.offer({2}, 5, 20, true));
  EXPECT_FALSE(seen.offer({3}, 5, 25, true));
  EXPECT_FALSE(seen.offer({4}, 9, 10, true));
  EXPECT_FALSE(seen.offer({5}, 1, -1, false));
  EXPECT_EQ(seen.solution, Solution{2});
  EXPECT_EQ(seen.cost, 5);
  EXPECT_EQ(seen.tightest, Solution{4});
  EXPECT_EQ(seen.least_peak, 10);
}

// Of a limit of 100, 20 are missing at the first time, and 10 are left at the second, which has no
// price yet: one step of (goal - value) / 20^2 a byte.
TEST(MemoryPrices, MoveByPolyaksLength) {
  Problem p;
  p.memory_limit = 100;
  p.nodes = {{"a", {0}, {{{120}, {{0, 0}}}}}, {"b", {0}, {{{90}, {{1, 1}}}}}};
  const FlatProblem flat(p);
  MemoryUse use(flat);
  use.reset({0, 0});
  MemoryPrices prices(use.times());
  ASSERT_TRUE(prices.move(use, 60, 100));
  EXPECT_EQ(prices.price(), (std::vector<double>{2, 0}));
  EXPECT_EQ(prices.priced_limit(), 200);
  int stalled = 8;
  prices.settle(stalled);
  EXPECT_EQ(stalled, 0);
  ASSERT_TRUE(prices.move(use, 60, 100));  // half a step
  EXPECT_EQ(prices.change(), (std::vector<double>{1, 0}));
}

TEST(Reducer, AChainIsReducedToItsOptimum) {
  // 0 -> 1 -> 2 with costs: the best is 0:1, 1:0, 2:1 = (2 + 1 + 0) + (0 + 0) = 3.
  Problem p;
  p.nodes = {{"x", {5, 2}, {}}, {"y", {1, 4}, {}}, {"z", {3, 0}, {}}};
  p.edges = {{0, 1, {9, 9, 0, 9}}, {2, 1, {9, 9, 0, 1}}};
  Reducer reducer(p);
  ASSERT_TRUE(reducer.run(1e6));
  ASSERT_EQ(reducer.core().nodes.size(), 1u);
  EXPECT_EQ(reducer.core().nodes[0].cost[0], 3);
  EXPECT_EQ(reducer.expand({0}), (Solution{1, 0, 1}));
}

TEST(Reducer, TiedNodesBecomeOneAndCarryTheirMemory) {
  // "state" must follow "update"; more memory than the limit allows in strategy 0.
  Problem p;
  p.memory_limit = 50;
  p.nodes = {{"update", {1, 2}, {{{30, 10}, {{0, 0}}}}}, {"state", {0, 0}, {{{30, 10}, {{0, 5}}}}}};
  p.edges = {{0, 1, {0, kInfeasible, kInfeasible, 0}}};
  Reducer reducer(p);
  ASSERT_TRUE(reducer.run(1e6));
  ASSERT_EQ(reducer.core().nodes.size(), 2u);  // fixed, update+state
  EXPECT_EQ(reducer.core().nodes[1].claims.size(), 2u);
  EXPECT_EQ(reducer.expand({0, 1}), (Solution{1, 1}));
}

TEST(Reducer, FindsThatNothingIsFeasible) {
  Problem p;
  p.nodes = {{"x", {0, 0}, {}}, {"y", {0}, {}}};
  p.edges = {{0, 1, {kInfeasible, kInfeasible}}};
  EXPECT_FALSE(Reducer(p).run(1e6));
}

}  // namespace
}  // namespace shardrun
