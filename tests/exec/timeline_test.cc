// A Timeline keeps the last runs, drops what does not fit, and an Executor tells it every step.
#include "exec/timeline.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

TEST(Timeline, KeepsTheLastRuns) {
  Timeline timeline(2, 3);
  EXPECT_TRUE(timeline.runs().empty());
  timeline.add(0, 1, 0, 1);  // outside all runs
  for (int64_t number = 1; number <= 3; ++number) {
    timeline.begin_run(number);
    for (int64_t e = 0; e < number + 1; ++e)
      timeline.add(static_cast<size_t>(10 * number + e), 1, static_cast<double>(e), e + 0.5);
    timeline.end_run();
  }
  const std::vector<Timeline::Run> runs = timeline.runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].number, 2);
  ASSERT_EQ(runs[0].events.size(), 3u);
  EXPECT_EQ(runs[0].events[2].step, 22u);
  EXPECT_EQ(runs[0].events[2].end, 2.5);
  EXPECT_EQ(runs[1].number, 3);
  ASSERT_EQ(runs[1].events.size(), 3u);  // the fourth was one too many
  EXPECT_EQ(runs[1].events[0].step, 30u);
  EXPECT_LE(runs[0].begin, runs[0].end);
  EXPECT_LE(runs[0].end, runs[1].begin);
}

TEST(Timeline, LeavesOutARunThatHasNotEnded) {
  Timeline timeline(2, 1);
  for (int64_t number = 1; number <= 2; ++number) {
    timeline.begin_run(number);
    timeline.end_run();
  }
  timeline.begin_run(3);  // where the first was
  const std::vector<Timeline::Run> runs = timeline.runs();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].number, 2);
}

}  // namespace
}  // namespace shardrun
