// What the process holds, and what it gives back.
#include "base/process/process_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/sanitizer.h"

namespace shardrun {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ProcessMemory, FreedBlocksGoBackToTheSystemOnRequest) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's allocator keeps what is freed";
  return_freed_memory_at_once();
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 64 << 10; ++i) {
    blocks.push_back(std::make_unique<char[]>(1000));  // zeroed, so resident
  }
  const auto last = std::make_unique<char[]>(1000);  // keeps the heap's end where it is
  const ProcessMemory before = process_memory();
  blocks.clear();
  if (before.resident == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
  ASSERT_GT(before.resident, 60 * kMiB);
  trim_heap();
  const ProcessMemory after = process_memory();
  EXPECT_LT(after.resident, before.resident - 50 * kMiB);
  EXPECT_LE(after.proportional, after.resident);
  EXPECT_EQ(last[0], 0);
}

}  // namespace
}  // namespace shardrun
