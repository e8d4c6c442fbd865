// What a sanitizer's build changes for tests: shadows that take terabytes of addresses and a
// multiple of the memory, and checks that take a multiple of the time.
#pragma once

namespace shardrun::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How many times as long a test waits, or lets a core work, where it limits that.
inline constexpr int kSlower = kSanitized ? 10 : 1;

}  // namespace shardrun::testing

/// Ends a test that is about limits of memory, which a sanitizer's build cannot keep.
#define SKIP_WHERE_MEMORY_IS_SHADOWED() \
  if (shardrun::testing::kSanitized)    \
  GTEST_SKIP() << "a sanitizer's shadow takes more memory than the test allows"
