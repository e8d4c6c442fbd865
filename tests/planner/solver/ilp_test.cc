// solve_ilp against brute force on random Problems, and on larger ones whose optimum is known.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/solver/bound.h"
#include "planner/solver/deadline.h"
#include "planner/solver/elimination.h"
#include "planner/solver/highs_mip.h"
#include "planner/solver/local_search.h"
#include "planner/solver/presolve/reductions.h"
#include "planner/solver/solver.h"
#include "tests/support/each_solution.h"

namespace shardrun {
namespace {

using test::optimum;

struct Shape {
  int nodes, strategies, edges;
  bool memory;
};

Problem random_problem(uint64_t seed, const Shape& shape) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Problem p;
  for (int i = 0; i < shape.nodes; ++i) {
    Problem::Node node{"n" + std::to_string(i), {}, {}};
    const int count = 1 + below(shape.strategies);
    for (int a = 0; a < count; ++a)
      node.cost.push_back(below(12) == 0 ? kInfeasible : below(40) * 0.25);
    for (int c = below(3); c > 0; --c) {
      Problem::Claim claim;
      for (int a = 0; a < count; ++a) claim.bytes.push_back(below(100));
      for (int k = 1 + below(2); k > 0; --k) {
        const int first = below(shape.nodes);
        claim.live.push_back({first, first + below(4) - 1});
      }
      node.claims.push_back(claim);
    }
    p.nodes.push_back(node);
  }
  for (int e = 0; e < shape.edges && shape.nodes > 1; ++e) {
    const int from = below(shape.nodes);
    const int to = (from + 1 + below(shape.nodes - 1)) % shape.nodes;
    Problem::Edge edge{from, to, {}};
    const size_t rows = p.nodes[static_cast<size_t>(from)].cost.size(),
                 columns = p.nodes[static_cast<size_t>(to)].cost.size();
    const bool tie = rows == columns && below(5) == 0;
    for (size_t a = 0; a < rows; ++a) {
      for (size_t b = 0; b < columns; ++b) {
        if (tie) {
          edge.cost.push_back(a == b ? 0 : kInfeasible);
        } else {
          edge.cost.push_back(below(15) == 0 ? kInfeasible : a == b ? 0 : below(30) * 0.25);
        }
      }
    }
    p.edges.push_back(edge);
  }
  if (shape.memory) p.memory_limit = 40 + below(60 * shape.nodes);
  return p;
}

void compare(uint64_t seed, const Shape& shape) {
  SCOPED_TRACE("seed " + std::to_string(seed) + (shape.memory ? " with" : " without") + " memory");
  const Problem p = random_problem(seed, shape);
  const double best = optimum(p);
  const SolveResult r = solve_ilp(p, {});
  EXPECT_EQ(r.solution.has_value(), best != kInfeasible) << r.solver;
  EXPECT_EQ(r.proven_infeasible, best == kInfeasible) << r.solver;
  if (!r.solution || best == kInfeasible) return;
  EXPECT_NEAR(r.cost, best, 1e-9) << r.solver;
  EXPECT_NEAR(r.lower_bound, best, 1e-6) << r.solver;
  EXPECT_EQ(evaluate(p, *r.solution).cost, r.cost);
}

TEST(SolveIlp, EqualsBruteForceWithoutMemory) {
  for (uint64_t seed = 0; seed < 300; ++seed)
    compare(seed, {1 + static_cast<int>(seed % 7), 4, static_cast<int>(seed % 14), false});
}

TEST(SolveIlp, EqualsBruteForceWithMemory) {
  for (uint64_t seed = 1000; seed < 1400; ++seed)
    compare(seed, {1 + static_cast<int>(seed % 7), 4, static_cast<int>(seed % 12), true});
}

/// Every part on its own, on the reduced core: no bound above, no solution below the optimum.
TEST(SolverParts, AgreeOnRandomCores) {
  int cores = 0;
  for (uint64_t seed = 2000; seed < 2120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Problem p = random_problem(seed, {6, 5, 14, seed % 2 == 1});
    const double best = optimum(p);
    Reducer reducer(p);
    if (!reducer.run(10)) {
      EXPECT_EQ(best, kInfeasible);
      continue;
    }
    const Problem& core = reducer.core();
    ++cores;
    // Reductions lose nothing.
    const double reduced = optimum(core);
    EXPECT_TRUE(reduced == best || std::abs(reduced - best) < 1e-9) << reduced << " " << best;
    Bound bound(core);
    double last = -kInfeasible;
    for (int sweep = 0; sweep < 20; ++sweep) {
      const double value = bound.sweep();
      EXPECT_GE(value, last - 1e-9);  // never falls
      EXPECT_LE(value, best + 1e-9);
      last = value;
    }
    if (!p.limited()) {
      const auto exact = eliminate_all(core);
      ASSERT_EQ(exact.has_value(), best != kInfeasible);
      if (exact) {
        EXPECT_NEAR(evaluate(p, reducer.expand(*exact)).cost, best, 1e-9);
      }
      // No strategy of an optimum has a slack above the gap.
      if (exact) {
        for (size_t i = 0; i < core.nodes.size(); ++i) {
          const double slack = bound.slack(static_cast<int>(i))[static_cast<size_t>((*exact)[i])];
          EXPECT_LE(bound.bound_before_sweep() + slack, best + 1e-9);
        }
      }
    }
    const auto found = LocalSearch(core).improve(Solution(core.nodes.size(), 0), {});
    if (found) {
      EXPECT_GE(evaluate(p, reducer.expand(*found)).cost, best - 1e-9);
    }
    const MipResult mip = solve_mip(core, found ? &*found : nullptr, Deadline(10), {});
    if (best == kInfeasible) {
      EXPECT_TRUE(mip.infeasible);
    } else {
      ASSERT_TRUE(mip.optimal);
      EXPECT_NEAR(evaluate(core, *mip.solution).cost, best, 1e-6);
    }
  }
  EXPECT_GT(cores, 50);
}

/// A grid of `side` x `side` nodes with random costs everywhere: too wide for tables, not a tree.
Problem grid(int side, int strategies, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&] { return static_cast<double>(random() % 1000) * 1e-6; };
  Problem p;
  for (int i = 0; i < side * side; ++i) {
    Problem::Node node{"g" + std::to_string(i), {}, {{{}, {{i, i + side}}}}};
    for (int a = 0; a < strategies; ++a) {
      node.cost.push_back(draw());
      node.claims[0].bytes.push_back(10 + static_cast<int64_t>(random() % 90));
    }
    p.nodes.push_back(node);
  }
  const auto join = [&](int i, int j) {
    Problem::Edge edge{i, j, {}};
    for (int k = 0; k < strategies * strategies; ++k)
      edge.cost.push_back(k % (strategies + 1) == 0 ? 0 : 0.5 * draw());
    p.edges.push_back(edge);
  };
  for (int r = 0; r < side; ++r) {
    for (int c = 0; c < side; ++c) {
      if (c + 1 < side) join(r * side + c, r * side + c + 1);
      if (r + 1 < side) join(r * side + c, (r + 1) * side + c);
    }
  }
  return p;
}

TEST(SolveIlp, ProvesTheOptimumOfAGrid) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const SolveResult r = solve_ilp(grid(6, 6, seed), {});
    ASSERT_TRUE(r.solution);
    EXPECT_NEAR(r.lower_bound, r.cost, 1e-6 * r.cost) << r.solver << ", seed " << seed;
  }
}

TEST(SolveIlp, StopsAtTheGapAskedFor) {
  const SolveResult r = solve_ilp(grid(14, 8, 3), {.gap = 0.05});
  ASSERT_TRUE(r.solution);
  EXPECT_GE(r.lower_bound, 0.95 * r.cost) << r.solver;
  EXPECT_LT(r.lower_bound, 0.99 * r.cost) << r.solver << " went on";
}

/// A better solution of costs that are taken a billionth of a time is not worth any search; of
/// costs that are taken a billion times it is worth all.
TEST(SolveIlp, WeighsWhatIsLeftToGainAgainstTheSearch) {
  SolveOptions options;
  options.clock = Deadline::Clock::work;
  options.mip = false;
  options.steps = 1e-9;
  const SolveResult hasty = solve_ilp(grid(14, 8, 3), options);
  ASSERT_TRUE(hasty.solution);
  EXPECT_LT(hasty.lower_bound, 0.99 * hasty.cost) << hasty.solver;
  options.steps = 1e9;
  const SolveResult thorough = solve_ilp(grid(14, 8, 3), options);
  ASSERT_TRUE(thorough.solution);
  EXPECT_GT(thorough.lower_bound, hasty.lower_bound);
  EXPECT_LE(thorough.cost, hasty.cost);
}

/// With a solution and a bound that are close enough there is nothing left to search.
TEST(SolveIlp, EndsAtABoundThatIsKnown) {
  const Problem p = grid(14, 8, 3);
  const auto work_of = [&](const SolveOptions& options, SolveResult& result) {
    const double begin = work_seconds();
    result = solve_ilp(p, options);
    return work_seconds() - begin;
  };
  SolveOptions options{.gap = 0.01};
  options.clock = Deadline::Clock::work;
  SolveResult found, again;
  const double work = work_of(options, found);
  ASSERT_TRUE(found.solution);
  options.start = &*found.solution;
  options.lower_bound = found.lower_bound;
  EXPECT_LT(work_of(options, again), 0.5 * work);
  EXPECT_EQ(again.solution, found.solution);
  EXPECT_GE(again.lower_bound, found.lower_bound);
}

/// The limit lies between the least memory possible and that of the fastest solution.
TEST(SolveIlp, ObeysTheLimitOfAGridAndRepeatsItself) {
  Problem p = grid(5, 4, 5);
  const SolveResult free = solve_ilp(p, {});
  ASSERT_TRUE(free.solution);
  const int64_t wanted = evaluate(p, *free.solution).peak_bytes;
  double last = free.cost;
  for (int percent : {92, 84}) {
    p.memory_limit = wanted * percent / 100;
    const SolveResult a = solve_ilp(p, {.seconds = 30}), b = solve_ilp(p, {.seconds = 30});
    ASSERT_TRUE(a.solution) << percent;
    EXPECT_LE(evaluate(p, *a.solution).peak_bytes, p.memory_limit);
    EXPECT_GT(a.cost, last);  // less memory costs time
    EXPECT_LE(a.lower_bound, a.cost);
    EXPECT_GE(a.lower_bound, 0.95 * a.cost) << a.solver;
    EXPECT_EQ(a.solution, b.solution);
    last = a.cost;
  }
}

/// Forty nodes alive at once: 8 bytes for 1 s or 2 bytes for 3 s. Of 200 bytes, 40 x 2 are needed
/// anyway and 120 are left for 20 upgrades of 6: 20 x 1 + 20 x 3 = 80 s.
TEST(SolveIlp, SharesMemoryOutExactly) {
  Problem p;
  p.memory_limit = 200;
  for (int i = 0; i < 40; ++i)
    p.nodes.push_back({"k" + std::to_string(i), {1, 3}, {{{8, 2}, {{0, 1}}}}});
  const SolveResult r = solve_ilp(p, {});
  ASSERT_TRUE(r.solution);
  EXPECT_NEAR(r.cost, 80, 1e-9);
  p.memory_limit = 79;
  const SolveResult none = solve_ilp(p, {});
  EXPECT_FALSE(none.solution);
  EXPECT_TRUE(none.proven_infeasible);
  ASSERT_TRUE(none.tightest);
  EXPECT_EQ(evaluate(p, *none.tightest).peak_bytes, 80);
}

}  // namespace
}  // namespace shardrun
