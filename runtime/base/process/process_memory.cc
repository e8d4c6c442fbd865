// Rss and Pss of /proc/self/smaps_rollup.
#include "base/process/process_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>

namespace shardrun {

ProcessMemory process_memory() {
  ProcessMemory out;
  std::ifstream in("/proc/self/smaps_rollup");       // Linux 4.14
  for (std::string line; std::getline(in, line);) {  // "Rss:     1234 kB"
    const int64_t bytes = std::strtoll(line.c_str() + line.find(':') + 1, nullptr, 10) << 10;
    if (line.rfind("Rss:", 0) == 0) out.resident = bytes;
    if (line.rfind("Pss:", 0) == 0) out.proportional = bytes;
  }
  return out;
}

namespace {

/// Where another allocator stands in for glibc's, these calls are the first that glibc's hears of:
/// it then sets itself up, and a thread that comes meanwhile finds that half done.
std::mutex one_at_a_time;

}  // namespace

int64_t heap_in_use() {
  const std::lock_guard lock(one_at_a_time);
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

void trim_heap() {
  const std::lock_guard lock(one_at_a_time);
  malloc_trim(0);
}

}  // namespace shardrun
