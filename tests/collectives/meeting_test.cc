// Meetings that are ended, or not waited for, while ranks come together.
#include "collectives/meeting.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace shardrun {
namespace {

/// Whenever the end comes, every rank has met as often as every other: nobody works on memory of
/// one that is gone.
TEST(Meeting, LetsAllThroughOrNone) {
  for (const bool polls : {true, false}) {
    for (int round = 0; round < 40; ++round) {
      Meeting meeting;
      std::array<int, 3> met{};
      std::atomic<int> come{0};
      std::vector<std::thread> threads;
      for (int& own : met) {
        threads.emplace_back([&] {
          ++come;
          while (meeting.enter(3, 0, polls) == Meeting::Outcome::met) {
            ++own;
            ASSERT_EQ(meeting.meet(3, 0, polls), Meeting::Outcome::met);  // whatever end() does
          }
        });
      }
      while (come < 3) std::this_thread::yield();
      for (int i = 0; i < 4 * round; ++i) std::this_thread::yield();
      meeting.end();
      for (std::thread& thread : threads) thread.join();
      ASSERT_EQ(met, (std::array{met[0], met[0], met[0]})) << "round " << round;
    }
  }
}

TEST(Meeting, OneWhoWaitsTooLongEndsItForThoseWhoComeLater) {
  Meeting meeting;
  EXPECT_EQ(meeting.enter(2, 0.05, true), Meeting::Outcome::timed_out);
  EXPECT_EQ(meeting.enter(2, 0, true), Meeting::Outcome::ended);
  Meeting later;
  EXPECT_EQ(later.meet(2, 0.05, false), Meeting::Outcome::timed_out);
  EXPECT_EQ(later.enter(1, 0, false), Meeting::Outcome::met);
}

}  // namespace
}  // namespace shardrun
