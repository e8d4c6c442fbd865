// Plans under many limits: what more memory allows never takes longer, and what is refused says
// truly how much would do.
#include "planner/memory_levels.h"

#include <gtest/gtest.h>

#include "gpt_step.h"

namespace shardrun {
namespace {

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

const Graph& step() {
  static const Graph graph = [] {
    GptOptions options = testing::small();
    options.layers = 1;
    return testing::gpt_step(options);
  }();
  return graph;
}

/// Bytes of the plan, or those that the refusal names; seconds, infinite if it is refused.
std::pair<int64_t, double> planned(const std::string& mesh, int64_t limit, bool recompute,
                                   const std::string& planner = "auto") {
  PlanOptions options;
  options.planner = planner;
  options.memory_limit = limit;
  options.recompute = recompute;
  PlanReport report;
  try {
    const Plan plan =
        plan_shardings(step(), Mesh::parse(mesh), host_cluster(), options, rules(), &report);
    EXPECT_LE(plan.bytes, limit);
    return {plan.bytes, plan.seconds};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
    return {report.least_bytes, std::numeric_limits<double>::infinity()};
  }
}

/// From what a refusal names to what is needed without a limit.
void expect_never_longer(const std::string& mesh, bool recompute, int limits) {
  const int64_t least = planned(mesh, 1, recompute).first;
  const int64_t most = planned(mesh, int64_t{1} << 40, recompute).first;
  ASSERT_LT(least, most);
  double before = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= limits; ++i) {
    const int64_t limit = least + (most - least) * i / limits;
    const double seconds = planned(mesh, limit, recompute).second;
    EXPECT_LT(seconds, std::numeric_limits<double>::infinity()) << mesh << ' ' << limit;
    EXPECT_LE(seconds, before) << mesh << ' ' << limit;
    before = seconds;
  }
}

TEST(MemoryLevels, MoreMemoryNeverTakesLonger) {
  expect_never_longer("1", true, 12);
  expect_never_longer("2", false, 12);
}

/// A limit below all: what is named does not depend on it.
TEST(MemoryLevels, RefusalsNameOneNumber) {
  const int64_t least = planned("1", 1, true).first;
  for (const int64_t percent : {10, 50, 99}) {
    const auto [bytes, seconds] = planned("1", least * percent / 100, true);
    EXPECT_EQ(bytes, least) << percent;
    EXPECT_EQ(seconds, std::numeric_limits<double>::infinity());
  }
}

/// No known parallelism needs less than the search finds, keeping all.
TEST(MemoryLevels, NeedNoMoreThanBaselines) {
  const int64_t least = planned("2x2", 1, false).first;
  for (const char* name : {"dp", "fsdp", "megatron", "fsdp+megatron"})
    EXPECT_LE(least, planned("2x2", 1, false, name).first) << name;
}

}  // namespace
}  // namespace shardrun
