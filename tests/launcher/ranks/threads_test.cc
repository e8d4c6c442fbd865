// Who gets how many threads, and which cores.
#include "ranks/threads.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "base/error.h"
#include "base/process/processors.h"

namespace shardrun {
namespace {

constexpr std::nullopt_t kNone = std::nullopt;
const ThreadsSet kNothing;

ThreadsSet wanted(int threads) {
  ThreadsSet environment;
  environment.wanted = threads;
  return environment;
}
ThreadsSet limited(int limit, int wanted = 0) { return {wanted, limit, kLeastStack}; }

/// Of a machine without quotas.
int of_cores(int cores, int ranks, std::optional<int> asked, const ThreadsSet& environment) {
  return threads_for({cores, ranks}, {}, asked, environment);
}

TEST(Threads, AreAShareOfTheCoresOrWhatWasAsked) {
  EXPECT_EQ(of_cores(8, 1, kNone, kNothing), 8);
  EXPECT_EQ(of_cores(8, 3, kNone, kNothing), 2);
  EXPECT_EQ(of_cores(2, 8, kNone, kNothing), 1);  // ranks outnumber cores
  EXPECT_EQ(of_cores(8, 2, 3, kNothing), 3);
  EXPECT_EQ(of_cores(8, 2, 4, wanted(1)), 4);  // --threads wins
  EXPECT_EQ(of_cores(2, 8, 1, kNothing), 1);
  EXPECT_EQ(of_cores(8, 2, kNone, wanted(3)), 3);
  EXPECT_EQ(of_cores(8, 2, kNone, wanted(16)), 4);  // never more threads than cores
  EXPECT_EQ(of_cores(8, 2, kNone, limited(3)), 3);
  EXPECT_EQ(of_cores(8, 2, kNone, limited(3, 2)), 2);
  EXPECT_EQ(of_cores(8, 2, 3, limited(3, 2)), 3);
}

TEST(Threads, AreAShareOfTheQuota) {
  EXPECT_EQ(threads_for({8, 1}, {3, 1}, kNone, kNothing), 3);
  EXPECT_EQ(threads_for({8, 2}, {3, 2}, kNone, kNothing), 1);
  EXPECT_EQ(threads_for({2, 1}, {4, 4}, kNone, kNothing), 1);  // bound to cores of their own
  EXPECT_EQ(threads_for({8, 2}, {1, 2}, kNone, kNothing), 1);
  EXPECT_EQ(threads_for({4, 2}, {8, 1}, kNone, kNothing), 2);  // a quota each
  EXPECT_EQ(threads_for({8, 1}, {3, 1}, 2, kNothing), 2);
}

TEST(Threads, MoreThanTheCoresAreRefused) {
  const auto refusal = [](const Shared& cores, int asked, const ThreadsSet& environment = {},
                          const Shared& quota = {}) {
    try {
      threads_for(cores, quota, asked, environment);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({4, 1}, 4), "");
  EXPECT_EQ(refusal({4, 1}, 5), "--threads 5: 1 rank has 4 cores; ask for 4 or fewer");
  EXPECT_EQ(refusal({4, 3}, 2),
            "--threads 2: 3 ranks share 4 cores; ask for 1, or start fewer ranks");
  EXPECT_EQ(refusal({4, 1}, 3, limited(2)),
            "--threads 3: OMP_THREAD_LIMIT allows 2; raise it, or ask for fewer");
  EXPECT_EQ(refusal({4, 1}, 4, {}, {3, 1}),
            "--threads 4: 1 rank has the time of 3 cores, the quota of their container or control "
            "group; ask for 3 or fewer");
  ThreadsSet shallow;
  shallow.stack = 20480;
  EXPECT_EQ(
      refusal({4, 1}, 1, shallow),
      "threads have stacks of 20480 bytes, wanted 262144 or more; unset OMP_STACKSIZE or set it "
      "to 1M, and see what 'ulimit -s' allows");
}

TEST(Threads, HaveTheStackOfTheEnvironment) {
  EXPECT_EQ(stack_bytes("20"), 20480);
  EXPECT_EQ(stack_bytes(" 512 k "), 512 << 10);
  EXPECT_EQ(stack_bytes("300000B"), 300000);
  EXPECT_EQ(stack_bytes("2M"), 2 << 20);
  EXPECT_EQ(stack_bytes("1g"), 1 << 30);
  // What OpenMP ignores, too little of it among them.
  for (const char* text : {"", "much", "1T", "1 M x", "-1", "8k", "9223372036854775807G"})
    EXPECT_EQ(stack_bytes(text), std::nullopt) << text;
  EXPECT_EQ(stack_bytes(nullptr), std::nullopt);
}

/// As with OMP_DYNAMIC=true, which makes fewer of them on a busy machine.
TEST(Threads, AreAllThere) {
  if (omp_get_thread_limit() < 3) GTEST_SKIP() << "OMP_THREAD_LIMIT allows fewer than 3 threads";
  const int before = omp_get_max_threads();
  omp_set_dynamic(1);
  use_threads(3);
  EXPECT_EQ(omp_get_dynamic(), 0);
  int came = 0;
#pragma omp parallel
#pragma omp single
  came = omp_get_num_threads();
  EXPECT_EQ(came, 3);
  use_threads(before);
}

TEST(Threads, RanksHaveCoresOfTheirOwn) {
  const std::vector<int> cores = {0, 2, 4, 6, 8};
  EXPECT_EQ(part_of(cores, 0, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(part_of(cores, 1, 2), (std::vector<int>{4, 6, 8}));
  EXPECT_EQ(part_of(cores, 0, 1), cores);
  EXPECT_EQ(part_of(cores, 3, 6), std::vector<int>());
}

TEST(Threads, ArePinnedWhileTheyRunAndLetGoAfterwards) {
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    if (std::getenv(name)) GTEST_SKIP() << name << " binds threads";
  }
  const std::vector<int> before = own_processors();
  const std::vector<int> cores = cores_of(before);
  ASSERT_FALSE(cores.empty());
  {
    const Pinned pinned({cores.back()}, 1);
    EXPECT_EQ(own_processors(), std::vector<int>{cores.back()});
  }
  EXPECT_EQ(own_processors(), before);
  {
    const Pinned pinned({}, 1);
    EXPECT_EQ(own_processors(), before);
  }
}

}  // namespace
}  // namespace shardrun
