// Who gets how many threads, and which cores.
#include "threads.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr std::nullopt_t kNone = std::nullopt;
const ThreadsSet kNothing;

ThreadsSet wanted(int threads) {
  ThreadsSet environment;
  environment.wanted = threads;
  return environment;
}
ThreadsSet limited(int limit, int wanted = 0) { return {wanted, limit}; }

TEST(Threads, AreAShareOfTheCoresOrWhatWasAsked) {
  EXPECT_EQ(threads_for(8, 1, kNone, kNothing), 8);
  EXPECT_EQ(threads_for(8, 3, kNone, kNothing), 2);
  EXPECT_EQ(threads_for(2, 8, kNone, kNothing), 1);  // ranks outnumber cores
  EXPECT_EQ(threads_for(8, 2, 3, kNothing), 3);
  EXPECT_EQ(threads_for(8, 2, 4, wanted(1)), 4);  // --threads wins
  EXPECT_EQ(threads_for(2, 8, 1, kNothing), 1);
  EXPECT_EQ(threads_for(8, 2, kNone, wanted(3)), 3);
  EXPECT_EQ(threads_for(8, 2, kNone, wanted(16)), 4);  // never more threads than cores
  EXPECT_EQ(threads_for(8, 2, kNone, limited(3)), 3);
  EXPECT_EQ(threads_for(8, 2, kNone, limited(3, 2)), 2);
  EXPECT_EQ(threads_for(8, 2, 3, limited(3, 2)), 3);
}

TEST(Threads, MoreThanTheCoresAreRefused) {
  const auto refusal = [](int cores, int ranks, int asked, const ThreadsSet& environment = {}) {
    try {
      threads_for(cores, ranks, asked, environment);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(4, 1, 4), "");
  EXPECT_EQ(refusal(4, 1, 5), "--threads 5: 1 rank has 4 cores; ask for 4 or fewer");
  EXPECT_EQ(refusal(4, 3, 2),
            "--threads 2: 3 ranks share 4 cores; ask for 1, or start fewer ranks");
  EXPECT_EQ(refusal(4, 1, 3, limited(2)),
            "--threads 3: OMP_THREAD_LIMIT allows 2; raise it, or ask for fewer");
}

/// As with OMP_DYNAMIC=true, which makes fewer of them on a busy machine.
TEST(Threads, AreAllThere) {
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
  const cpu_set_t before = own_mask();
  const std::vector<int> cores = cores_of(before);
  ASSERT_FALSE(cores.empty());
  {
    const Pinned pinned({cores.back()}, 1);
    const cpu_set_t now = own_mask();
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(cores.back(), &now));
  }
  cpu_set_t after = own_mask();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  {
    const Pinned pinned({}, 1);
    after = own_mask();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }
}

}  // namespace
}  // namespace shardrun
