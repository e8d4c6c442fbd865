// Counts allocations in the program that links allocations.cc.
#pragma once

#include <cstdint>

namespace shardrun::test {

/// Calls of operator new so far, by all threads, but for those of oneDNN while it runs a primitive
/// or takes a pointer: it lists the arguments anew each time.
int64_t allocations();

}  // namespace shardrun::test
