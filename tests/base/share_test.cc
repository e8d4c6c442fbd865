// Pieces of work for a few threads.
#include "base/share.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/at.h"

namespace shardrun {
namespace {

TEST(Share, DoesEachPieceOnce) {
  for (const int count : {0, 1, 2, 7, 100}) {
    for (const int threads : {0, 1, 2, 5}) {
      std::vector<std::atomic<int>> done(at(count));
      share(count, threads, [&](int i) { ++done[at(i)]; });
      for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(Share, EndsWhatOthersDoBeforeItTellsTheFirstError) {
  for (const int threads : {1, 3}) {
    std::atomic<int> done{0};
    try {
      share(20, threads, [&](int i) {
        if (i == 5 || i == 11) throw std::runtime_error("piece " + std::to_string(i));
        ++done;
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "piece 5");
    }
    EXPECT_EQ(done, 18);
  }
}

TEST(Share, TakesProcessorSecondsOfOthersAlone) {
  EXPECT_EQ(share(3, 1, [](int) {}), 0);
}

}  // namespace
}  // namespace shardrun
