// What memory this process holds, as Linux counts it.
#pragma once

#include <cstdint>

namespace shardrun {

/// Bytes that are in memory now. Zeros where /proc cannot be read.
struct ProcessMemory {
  int64_t resident = 0;  // all that it maps, shared with others or not
  /// The same, but of what n processes map each has an nth (the kernel's Pss): those of several
  /// processes add up to what they take together.
  int64_t proportional = 0;
};
ProcessMemory process_memory();

/// Bytes of the heap that are in use; 0 where the allocator does not say.
int64_t heap_in_use();

/// Gives what the heap has free back to the system, which else keeps much of what planning took.
void trim_heap();

}  // namespace shardrun
