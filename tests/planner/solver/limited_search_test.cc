// Solutions fit into the capacity of each time, and bounds hold, though few times are looked at.
#include "planner/solver/limited_search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "planner/solver/deadline.h"
#include "tests/support/factored_problems.h"

namespace shardrun {
namespace {

using test::each_solution;
using test::random_problem;

bool fits(const FactoredProblem& problem, const Solution& solution,
          const std::vector<int64_t>& capacity) {
  const std::vector<int64_t> use = bytes_over_time(problem, solution);
  for (size_t t = 0; t < capacity.size(); ++t) {
    if (t < use.size() && use[t] > capacity[t]) return false;
  }
  return true;
}

TEST(LimitedSearch, WithoutLimitTheBest) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const FactoredProblem problem = random_problem(7, seed, true, 5);
    double best = kInfeasible;
    each_solution(problem, [&](const Solution& s) { best = std::min(best, raw_cost(problem, s)); });
    const LimitedResult found = LimitedSearch(problem, {.gap = 1e-9}).run({}, {}, 10);
    ASSERT_TRUE(found.solution);
    EXPECT_NEAR(found.cost, best, 1e-9) << "seed " << seed;
    EXPECT_NEAR(raw_cost(problem, *found.solution), found.cost, 1e-9);
    EXPECT_LE(found.lower_bound, best + 1e-6);
  }
}

/// HiGHS, which gets the whole program, is the judge: what is found without it is about as good,
/// and its bound holds.
TEST(LimitedSearch, WithoutHighsAboutAsGood) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const FactoredProblem problem = random_problem(40, seed);
    const LimitedResult found = LimitedSearch(problem, {.gap = 1e-9}).run({}, {}, 2),
                        whole = LimitedSearch(problem, {1e-9, LimitedOptions::Method::plain})
                                    .run({}, {}, 60);
    ASSERT_TRUE(found.solution && whole.solution);
    EXPECT_EQ(whole.solver, "mip");
    EXPECT_NE(found.solver, "mip");
    EXPECT_LE(found.lower_bound, whole.cost + 1e-6) << "seed " << seed;
    EXPECT_LE(whole.lower_bound, found.cost + 1e-6) << "seed " << seed;
    EXPECT_LT(found.cost, 1.01 * whole.cost) << "seed " << seed;
  }
}

/// Capacity that differs from time to time, about what some solution takes.
TEST(LimitedSearch, StaysWithinTheCapacityOfEachTime) {
  int solved = 0, optimal = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const FactoredProblem problem = random_problem(7, seed, true, 5);
    std::mt19937_64 random(seed);
    Solution some;
    for (const FactoredProblem::Node& node : problem.nodes)
      some.push_back(static_cast<int>(random() % node.cost.size()));
    std::vector<int64_t> capacity = bytes_over_time(problem, some);
    for (int64_t& bytes : capacity) bytes += static_cast<int64_t>(random() % 3);
    double best = kInfeasible;
    each_solution(problem, [&](const Solution& s) {
      if (fits(problem, s, capacity)) best = std::min(best, raw_cost(problem, s));
    });
    ASSERT_LT(best, kInfeasible);
    const LimitedResult found = LimitedSearch(problem, {.gap = 1e-9}).run(capacity, {}, 10);
    EXPECT_LE(found.lower_bound, best + 1e-6) << "seed " << seed;
    if (!found.solution) continue;
    ++solved;
    EXPECT_TRUE(fits(problem, *found.solution, capacity)) << "seed " << seed;
    EXPECT_NEAR(raw_cost(problem, *found.solution), found.cost, 1e-9);
    EXPECT_GE(found.cost, best - 1e-9);
    optimal += found.cost <= best + 1e-9 ? 1 : 0;
  }
  EXPECT_EQ(solved, 20);
  EXPECT_GE(optimal, 18);
}

TEST(LimitedSearch, WhereNothingFitsTheSmallestSeenIsKnown) {
  const FactoredProblem problem = random_problem(7, 3, true, 5);
  const std::vector<int64_t> capacity(12, 2);
  const LimitedResult found = LimitedSearch(problem, {}).run(capacity, {}, 10);
  EXPECT_FALSE(found.solution);
  ASSERT_TRUE(found.tightest);
  EXPECT_LT(raw_cost(problem, *found.tightest), kInfeasible);
}

TEST(LimitedSearch, NothingFitsBelowTheLeastPeak) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const FactoredProblem problem = random_problem(7, seed, true, 5);
    const int64_t least = least_peak_bytes(problem);
    EXPECT_GT(least, 0) << "seed " << seed;
    EXPECT_EQ(test::optimum_within(problem, least - 1), kInfeasible) << "seed " << seed;
  }
}

/// The other methods solve the same problem: the plain program exactly, the beam no better.
TEST(LimitedSearch, TheMethodsAgree) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const FactoredProblem problem = random_problem(7, seed, true, 5);
    const std::vector<int64_t> capacity(12, 22);
    const double best = test::optimum_within(problem, 22);
    using Method = LimitedOptions::Method;
    for (const Method method : {Method::plain, Method::beam}) {
      const LimitedResult found =
          LimitedSearch(problem, {.gap = 1e-9, .method = method}).run(capacity, {}, 10);
      if (method == Method::plain && best < kInfeasible) {
        ASSERT_TRUE(found.solution);
        EXPECT_NEAR(found.cost, best, 1e-6) << "seed " << seed;
      }
      if (!found.solution) continue;
      EXPECT_LE(peak_bytes(problem, *found.solution), 22);
      EXPECT_GE(found.cost, best - 1e-6);
    }
  }
}

/// Time that passes does not move the clock that ends a search.
TEST(LimitedSearch, AnEndedSearchDependsOnNoClock) {
  const FactoredProblem problem = random_problem(24, 11, true, 8);
  const Solution first(problem.nodes.size(), 0);
  std::vector<int64_t> capacity = bytes_over_time(problem, first);
  for (int64_t& bytes : capacity) bytes = bytes * 3 / 4;
  const auto search = [&](double seconds) {
    return LimitedSearch(problem, {.gap = 1e-9}).run(capacity, {}, seconds);
  };
  const double begin = work_seconds();
  const double whole = (search(10), work_seconds() - begin);
  ASSERT_GT(whole, 0);
  for (const double fraction : {0.1, 0.3, 0.6}) {
    const LimitedResult idle = search(fraction * whole);
    std::atomic<bool> done = false;
    std::vector<std::thread> crowd;
    for (int i = 0; i < 4; ++i) {
      crowd.emplace_back([&] {
        while (!done) std::this_thread::yield();
      });
    }
    const LimitedResult busy = search(fraction * whole);
    done = true;
    for (std::thread& thread : crowd) thread.join();
    EXPECT_EQ(idle.solution, busy.solution) << fraction;
    EXPECT_EQ(idle.tightest, busy.tightest) << fraction;
    EXPECT_EQ(idle.lower_bound, busy.lower_bound) << fraction;
  }
}

/// Of steps that take nanoseconds a better plan could save nothing that a search is worth, but for
/// what none notices.
TEST(LimitedSearch, EndsWhereTrainingCouldNotGainItsTime) {
  FactoredProblem problem = random_problem(2000, 11);
  const auto work_of = [&](LimitedResult& found) {
    const double begin = work_seconds();
    found = LimitedSearch(problem, {.gap = 1e-9}).run({}, {}, 10);
    return work_seconds() - begin;
  };
  LimitedResult seconds, nanoseconds;
  const double long_search = work_of(seconds);
  for (FactoredProblem::Node& node : problem.nodes) {
    for (double& cost : node.cost) cost *= 1e-9;
  }
  for (FactoredProblem::Edge& edge : problem.edges) edge.scale *= 1e-9;
  const double short_search = work_of(nanoseconds);
  EXPECT_LT(short_search, 0.1);
  EXPECT_LT(short_search, long_search / 2);
  ASSERT_TRUE(seconds.solution && nanoseconds.solution);
  EXPECT_LE(nanoseconds.lower_bound, seconds.cost * (1e-9 + 1e-15));
}

TEST(Deadline, OfWorkPassesByWorkAlone) {
  const Deadline end(1e-3, Deadline::Clock::work);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  EXPECT_FALSE(end.passed());
  EXPECT_EQ(end.elapsed(), 0);
  count_work(2e6);
  EXPECT_TRUE(end.passed());
}

}  // namespace
}  // namespace shardrun
