// How far the host gets ahead of a device that is as slow as it can be, and who watches it wait.
#include "device/cuda/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace shardrun::cuda {
namespace {

/// Does steps, in their order, only when somebody waits for them; `quick`: at once.
struct Stream {
  bool quick = false;
  int64_t asked = 0, done = 0, waits = 0, mark = -1;
  Ahead ahead = {};

  /// As CudaDevice does it; `ends`: what is waited for does not come.
  void step(bool ends = false) {
    ahead.begins(
        [&] {
          ASSERT_GE(mark, 0) << "nobody has left one";
          if (ends) fail(ErrorKind::comm, "waited 1 s");
          if (done < mark) ++waits, done = mark;
        },
        [&] { mark = asked; });
    ++asked;
    if (quick) done = asked;
  }
};

TEST(Waiting, TheHostIsAtMostSoManyStepsAhead) {
  Stream stream;
  int64_t most = 0;
  for (int step = 0; step < 1000; ++step) {
    stream.step();
    most = std::max(most, stream.asked - stream.done);
    // It waits for no more than it must: the device is never without work.
    if (step >= Ahead::kMost) {
      EXPECT_GE(stream.asked - stream.done, Ahead::kEvery);
    }
  }
  EXPECT_EQ(most, Ahead::kMost);
}

TEST(Waiting, ADeviceThatKeepsUpIsNotWaitedFor) {
  Stream stream{true};
  for (int step = 0; step < 1000; ++step) stream.step();
  EXPECT_EQ(stream.waits, 0);
}

/// A wait that a watch ends leaves the next ones as they were.
TEST(Waiting, GoesOnBehindAWaitThatFailed) {
  Stream stream;
  int failed = 0;
  for (int step = 1; step < 400; ++step) {
    try {
      stream.step(step == 5 * Ahead::kEvery);
    } catch (const Error&) {
      ++failed;
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_LE(stream.asked - stream.done, Ahead::kMost);
}

TEST(Waiting, IsWatchedUntilAWatchEndsIt) {
  Watches watches;
  int looks = 0;
  double last = 0;
  const auto kept = watches.add([&](double waited) {
    EXPECT_GT(waited, last);
    last = waited;
    if (++looks == 3) fail(ErrorKind::comm, "waited too long");
  });
  int others = 0;
  const auto other = watches.add([&](double) { ++others; });
  watches.add([&](double) { FAIL() << "it was given back"; });
  EXPECT_THROW(wait_while([] { return true; }, watches), Error);
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(others, 3);  // also of the look that threw
}

TEST(Waiting, ShortWorkIsNotWatched) {
  Watches watches;
  const auto kept = watches.add([](double) { FAIL(); });
  int asked = 0;
  wait_while([&] { return ++asked < 100; }, watches);
  EXPECT_EQ(asked, 100);
}

}  // namespace
}  // namespace shardrun::cuda
