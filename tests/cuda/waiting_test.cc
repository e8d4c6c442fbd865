// How far the host gets ahead of a device that is as slow as it can be, and who watches it wait.
#include "device/cuda/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>

#include "base/error.h"
#include "device/cuda/launches.h"
#include "tests/cuda/sources.h"

namespace shardrun::cuda {
namespace {

/// Does launches, in their order, only when somebody waits for them; `quick`: at once.
struct Stream {
  bool quick = false;
  int64_t asked = 0, done = 0, waits = 0, mark = -1;
  Ahead ahead = {};

  /// As CudaDevice does it; `ends`: what is waited for does not come.
  void launch(int64_t count = 1, bool ends = false) {
    asked += count;
    if (quick) done = asked;
    ahead.asked(
        count,
        [&] {
          ASSERT_GE(mark, 0) << "nobody has left one";
          if (ends) fail(ErrorKind::comm, "waited 1 s");
          if (done < mark) ++waits, done = mark;
        },
        [&] { mark = asked; });
  }
};

TEST(Waiting, TheHostIsAtMostSoManyLaunchesAhead) {
  Stream stream;
  int64_t most = 0;
  for (int launch = 0; launch < 5000; ++launch) {
    stream.launch();
    most = std::max(most, stream.asked - stream.done);
    // It waits for no more than it must: the device is never without work.
    if (launch >= Ahead::kMost) {
      EXPECT_GE(stream.asked - stream.done, Ahead::kEvery);
    }
  }
  EXPECT_LE(most, Ahead::kMost);
  EXPECT_GE(most, Ahead::kMost - 1);
}

/// Whatever a step asks for: nothing, or a chunk of a collective a thousand times.
TEST(Waiting, LaunchesCountNotSteps) {
  Stream stream;
  int64_t most = 0;
  for (int64_t step = 0; step < 200; ++step) {
    for (int64_t launch = 0; launch < step * step % 1000; ++launch) {
      stream.launch(launch % 3 == 0 ? kLibraryLaunches : 1);
      most = std::max(most, stream.asked - stream.done);
    }
  }
  EXPECT_GT(most, Ahead::kMost / 2);
  EXPECT_LE(most, Ahead::kMost + 2 * kLibraryLaunches);
}

TEST(Waiting, ADeviceThatKeepsUpIsNotWaitedFor) {
  Stream stream{true};
  for (int launch = 0; launch < 5000; ++launch) stream.launch();
  EXPECT_EQ(stream.waits, 0);
}

/// A wait that a watch ends leaves the next ones as they were.
TEST(Waiting, GoesOnBehindAWaitThatFailed) {
  Stream stream;
  int failed = 0;
  for (int64_t launch = 1; launch < 2000; ++launch) {
    try {
      stream.launch(1, launch == 5 * Ahead::kEvery);
    } catch (const Error&) {
      ++failed;
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_LE(stream.asked - stream.done, Ahead::kMost);
}

TEST(Waiting, AStreamsLaunchesAreItsDevices) {
  struct Count : Launches {
    int64_t all = 0;
    void launched(int64_t count) override { all += count; }
  } mine, others;
  set_launches_of(&mine, &mine), set_launches_of(&others, &others);
  launched(&mine);
  launched(&mine, kLibraryLaunches);
  launched(nullptr);
  EXPECT_EQ(mine.all, 1 + kLibraryLaunches);
  EXPECT_EQ(others.all, 0);
  set_launches_of(&mine, nullptr), set_launches_of(&others, nullptr);
  launched(&mine);
  EXPECT_EQ(mine.all, 1 + kLibraryLaunches);
}

/// Whatever puts work into a stream says so soon behind it, or waits for it.
TEST(Waiting, EveryLaunchCounts) {
  const std::regex asks(
      R"(<<<|cudaLaunchKernel\(|cudaMemcpyAsync\(|cudaMemsetAsync\(|cudaGraphLaunch\(|cublasLtMatmul\)|= execute\(|settle\(call)");
  const std::regex counts(R"(check_launch\(|launched\(|ynchronize\()");
  int found = 0;
  each_source([&](const std::filesystem::path& path, const std::string& text) {
    for (std::sregex_iterator it(text.begin(), text.end(), asks), end; it != end; ++it) {
      ++found;
      constexpr size_t kBehind = 800;
      const auto at = static_cast<size_t>(it->position());
      EXPECT_TRUE(std::regex_search(text.substr(at, kBehind), counts))
          << path << ": " << text.substr(at, 60);
    }
  });
  EXPECT_GT(found, 12);
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
