// Limits on a small GPT's step: more memory is never slower, and what a refusal names will do.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "planner/planner.h"
#include "planner/schedule/schedule.h"
#include "tests/planner/gpt_step.h"

namespace shardrun {
namespace {

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

class MemoryLimits : public testing::Test {
 protected:
  /// nullopt: refused, and `least_` is the limit that is named.
  std::optional<Plan> within(int64_t limit, const PlannerChoice& planner = {}) {
    Cluster cluster;
    cluster.flops = {{DType::f32, {50e9}}};
    PlanOptions options;
    options.planner = planner;
    options.memory_limit = limit;
    options.recompute = planner.kind != PlannerKind::baselines;
    PlanReport report;
    try {
      Plan plan = plan_shardings(graph_, mesh_, cluster, options, rules(), &report);
      EXPECT_TRUE(limit == 0 || plan.bytes <= limit) << plan.bytes;
      return plan;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
      least_ = report.least->bytes;
      return std::nullopt;
    }
  }

  static GptOptions model() {
    GptOptions out = test::small();
    out.layers = 1;
    out.hidden = 32;
    out.context = 32;
    out.batch = 8;
    return out;
  }

  const Mesh mesh_ = Mesh::parse("4");
  const Graph graph_ = test::gpt_step(model());
  int64_t least_ = 0;
};

TEST_F(MemoryLimits, MoreIsNeverSlower) {
  const Plan free = *within(0);
  ASSERT_FALSE(within(1));
  constexpr int kLimits = 6;
  double last = kInfeasible;
  for (int k = 0; k <= kLimits; ++k) {
    const int64_t limit = least_ + (free.bytes - least_) * k / kLimits;
    const std::optional<Plan> plan = within(limit);
    ASSERT_TRUE(plan) << limit << " of " << least_;
    EXPECT_LE(plan->seconds, last * (1 + 1e-9)) << limit;
    last = plan->seconds;
  }
  EXPECT_EQ(last, free.seconds);
}

/// Whoever looks in part of all plans names what does when all are looked at, for any limit.
TEST_F(MemoryLimits, EveryPlannerNamesTheLeast) {
  ASSERT_FALSE(within(1));
  const int64_t least = least_;
  for (const PlannerKind kind : {PlannerKind::beam, PlannerKind::mcts}) {
    std::optional<int64_t> named;
    for (const int64_t limit : {int64_t{1}, least * 9 / 10}) {
      ASSERT_FALSE(within(limit, {kind}));
      EXPECT_EQ(least_, named.value_or(least_)) << to_string(PlannerChoice{kind}) << ' ' << limit;
      named = least_;
      EXPECT_LE(static_cast<double>(least_), 1.05 * static_cast<double>(least))
          << to_string(PlannerChoice{kind});
    }
    EXPECT_TRUE(within(*named, {kind})) << to_string(PlannerChoice{kind});
  }
}

/// What is named does not depend on what was asked for, is enough, and no known parallelism does
/// with less.
TEST_F(MemoryLimits, ARefusalNamesALimitThatWillDo) {
  ASSERT_FALSE(within(1));
  const int64_t named = least_;
  ASSERT_FALSE(within(named / 2));
  EXPECT_EQ(least_, named);
  EXPECT_TRUE(within(named));
  for (const PlannerChoice& planner : baselines_of(mesh_)) {
    ASSERT_FALSE(within(1, planner)) << to_string(planner);
    EXPECT_GE(least_, named) << to_string(planner);
  }
}

}  // namespace
}  // namespace shardrun
