// What was measured is found again by other objects, processes and runs; damage is survived.
#include "kernels/cuda/autotune.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files/cache_folder.h"

namespace shardrun::cuda {
namespace {

class AutotuneFile : public testing::Test {
 protected:
  AutotuneFile()
      : folder_(testing::TempDir() + "/" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }
  ~AutotuneFile() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(AutotuneFile, KeepsTheFirstAnswerForAll) {
  Autotune one(folder_, "GPU A, cublasLt 1"), other(folder_, "GPU A, cublasLt 1");
  EXPECT_EQ(one.find("call"), std::nullopt);
  EXPECT_EQ(one.keep("call", "7"), "7");
  EXPECT_EQ(other.keep("call", "8"), "7");
  EXPECT_EQ(other.find("call"), "7");
  EXPECT_EQ(other.keep("more", "9"), "9");
  Autotune later(folder_, "GPU A, cublasLt 1");
  EXPECT_EQ(later.find("call"), "7");
  EXPECT_EQ(later.find("more"), "9");
}

TEST_F(AutotuneFile, TakesWhatRanksHaveAgreedOn) {
  Autotune first("", "GPU A"), second("", "GPU A"), other("", "GPU B"), mine(folder_, "GPU A");
  first.keep("call", "7");
  second.keep("call", "8");
  second.keep("more", "9");
  other.keep("others", "1");
  mine.keep("call", "5");
  mine.keep("own", "6");
  mine.take(std::vector{first.tell(), second.tell(), other.tell(), mine.tell()});
  const auto expect = [](Autotune& tuned) {
    EXPECT_EQ(tuned.find("call"), "7");
    EXPECT_EQ(tuned.find("more"), "9");
    EXPECT_EQ(tuned.find("own"), "6");
    EXPECT_EQ(tuned.find("others"), std::nullopt);
  };
  expect(mine);
  mine.keep("later", "2");  // which reads the file anew
  expect(mine);
  Autotune later(folder_, "GPU A");
  expect(later);
}

TEST_F(AutotuneFile, IsOneForEachGpuAndVersion) {
  Autotune a(folder_, "GPU A, cublasLt 1"), b(folder_, "GPU B, cublasLt 1"),
      newer(folder_, "GPU A, cublasLt 2");
  a.keep("call", "7");
  EXPECT_EQ(b.keep("call", "8"), "8");
  EXPECT_EQ(newer.keep("call", "9"), "9");
  EXPECT_EQ(std::filesystem::path(a.path()).filename(), "autotune-GPU-A--cublasLt-1.txt");
}

TEST_F(AutotuneFile, SurvivesDamage) {
  std::string path;
  {
    Autotune tuned(folder_, "GPU");
    tuned.keep("first", "1");
    tuned.keep("second", "2");
    path = tuned.path();
  }
  const std::string whole = read_cached(path);
  ASSERT_FALSE(whole.empty());
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write(whole.substr(0, whole.size() - 3));  // the second line's end is missing
  EXPECT_EQ(Autotune(folder_, "GPU").find("first"), "1");
  EXPECT_EQ(Autotune(folder_, "GPU").find("second"), std::nullopt);
  std::string changed = whole;
  changed[changed.find("\t1\t") + 1] = '5';
  write(changed);
  EXPECT_EQ(Autotune(folder_, "GPU").find("first"), std::nullopt);
  EXPECT_EQ(Autotune(folder_, "GPU").find("second"), "2");
  for (const std::string& text : {std::string("something else\nfirst\t1\t0\n"),
                                  std::string("\0\xff\t\t\n", 5), std::string()}) {
    write(text);
    Autotune tuned(folder_, "GPU");
    EXPECT_EQ(tuned.find("first"), std::nullopt);
    EXPECT_EQ(tuned.keep("first", "3"), "3");
    EXPECT_EQ(Autotune(folder_, "GPU").find("first"), "3");
  }
}

TEST_F(AutotuneFile, IsDoneWithoutWhereNothingCanBeWritten) {
  for (const char* folder : {"", "/proc/none"}) {
    Autotune tuned(folder, "GPU");
    EXPECT_EQ(tuned.keep("call", "7"), "7");
    EXPECT_EQ(tuned.find("call"), "7");
  }
}

TEST_F(AutotuneFile, LosesNothingWhenManyWrite) {
  constexpr int kRanks = 4, kCalls = 25;
  std::vector<std::vector<std::string>> kept(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      Autotune tuned(folder_, "GPU");
      for (int call = 0; call < kCalls; ++call)
        kept[static_cast<size_t>(rank)].push_back(tuned.keep(str("call ", call), str(rank)));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  Autotune tuned(folder_, "GPU");
  for (int call = 0; call < kCalls; ++call) {
    const auto at = static_cast<size_t>(call);
    ASSERT_TRUE(tuned.find(str("call ", call)).has_value()) << call;
    for (const auto& each : kept) EXPECT_EQ(each[at], *tuned.find(str("call ", call)));
  }
}

TEST(Fastest, IsMeasuredOnceAndKept) {
  Autotune tuned("", "GPU A");
  std::vector<float> times = {3, 1, 2};
  int asked = 0;
  const auto time = [&](size_t way) {
    ++asked;
    return times[way];
  };
  const std::vector<std::string> ways = {"a", "b", "c"};
  EXPECT_EQ(fastest(tuned, "call", ways, false, time), std::nullopt);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(fastest(tuned, "call", ways, true, time), 1u);
  EXPECT_EQ(asked, 3);
  times = {1, 3, 2};
  EXPECT_EQ(fastest(tuned, "call", ways, false, time), 1u);
  EXPECT_EQ(asked, 3);
  // What was kept is no way now: measured again, but what was first stays kept.
  EXPECT_EQ(
      fastest(tuned, "call", {"a", "c"}, true, [](size_t way) { return way == 1 ? 1.f : 2.f; }),
      1u);
  EXPECT_EQ(tuned.find("call"), "b");
}

TEST(Fastest, LeavesOutWhatCannotRun) {
  Autotune tuned("", "GPU A");
  const std::vector<std::string> ways = {"a", "b"};
  EXPECT_EQ(fastest(tuned, "call", ways, true, [](size_t way) { return way == 0 ? -1.f : 5.f; }),
            1u);
  EXPECT_EQ(fastest(tuned, "other", ways, true, [](size_t) { return -1.f; }), std::nullopt);
  EXPECT_EQ(tuned.find("other"), std::nullopt);
}

TEST(Fastest, LeavesOutWhatFailsWhenItRuns) {
  int settled = 0;
  const auto with = [&](const std::function<float()>& time) {
    return time_if_it_runs(time, [&] { ++settled; });
  };
  EXPECT_EQ(with([] { return 2.f; }), 2.f);
  EXPECT_EQ(settled, 0);
  EXPECT_LT(with([] { return -1.f; }), 0);
  for (const ErrorKind kind : {ErrorKind::device, ErrorKind::out_of_memory})
    EXPECT_LT(with([&]() -> float { fail(kind, "no such kernel image"); }), 0);
  EXPECT_EQ(settled, 3);
  EXPECT_THROW(with([]() -> float { fail(ErrorKind::internal, "ours"); }), Error);
  const auto broken = [] { fail(ErrorKind::device, "an illegal memory access"); };
  EXPECT_THROW(
      time_if_it_runs([]() -> float { fail(ErrorKind::device, "an illegal access"); }, broken),
      Error);
  EXPECT_THROW(time_if_it_runs([] { return -1.f; }, broken), Error);
}

}  // namespace
}  // namespace shardrun::cuda
