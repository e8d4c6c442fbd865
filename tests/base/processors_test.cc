// The processors of a machine that has more than fit into a cpu_set_t, made up here.
#include "base/process/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cerrno>

namespace {
constexpr size_t kMachine = 3000 / 8;  // bytes of Linux's own set, of so many bits
std::vector<int> allowed = {3, 1500, 2999};
}  // namespace

extern "C" int sched_getaffinity(pid_t, size_t bytes, cpu_set_t* set) noexcept {
  if (bytes < kMachine) {
    errno = EINVAL;
    return -1;
  }
  for (const int processor : allowed) CPU_SET_S(static_cast<size_t>(processor), bytes, set);
  return 0;
}
extern "C" int sched_setaffinity(pid_t, size_t bytes, const cpu_set_t* set) noexcept {
  allowed.clear();
  for (size_t processor = 0; processor < 8 * bytes; ++processor)
    if (CPU_ISSET_S(processor, bytes, set)) allowed.push_back(static_cast<int>(processor));
  return 0;
}

namespace shardrun {
namespace {

TEST(Processors, OfALargeMachineAreFound) {
  EXPECT_EQ(own_processors(), (std::vector<int>{3, 1500, 2999}));
  run_on({1500, 2998});
  EXPECT_EQ(own_processors(), (std::vector<int>{1500, 2998}));
  EXPECT_EQ(cores_of(own_processors()), own_processors());  // of no siblings anything is known
  EXPECT_LE(usable_cores(), 2);
  EXPECT_GE(usable_cores(), 1);
  run_on({3, 1500, 2999});
  run_on({});
  EXPECT_EQ(own_processors().size(), 3u);
}

}  // namespace
}  // namespace shardrun
