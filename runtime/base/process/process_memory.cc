// Rss and Pss of /proc/self/smaps_rollup, and what /proc/self/statm counts.
#include "base/process/process_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <mimalloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>

#include "base/error.h"

// There in programs that are linked with mimalloc, as the command is, and null in others.
#pragma weak mi_collect
#pragma weak mi_heap_get_default
#pragma weak mi_heap_visit_blocks
#pragma weak mi_option_set

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

std::optional<AddressSpace> address_space() {
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return std::nullopt;
  AddressSpace out{static_cast<int64_t>(most.rlim_cur), 0};
  const int file = open("/proc/self/statm", O_RDONLY);  // a stream takes memory, of which there may
  if (file < 0) return out;                             // be none
  std::array<char, 64> text{};
  if (read(file, text.data(), text.size() - 1) > 0)
    out.mapped = std::strtoll(text.data(), nullptr, 10) * sysconf(_SC_PAGESIZE);
  close(file);
  return out;
}

namespace {

std::atomic<int64_t> most_bytes = std::numeric_limits<int64_t>::max();

}  // namespace

void limit_process_memory(int64_t bytes) { most_bytes = bytes; }

void require_memory(int64_t bytes, const std::string& takes, const std::string& advice) {
  const int64_t most = most_bytes;
  if (most == std::numeric_limits<int64_t>::max()) return;
  const int64_t held = process_memory().resident;
  SR_REQUIRE(bytes <= most - held, out_of_memory, takes, ", and this process holds ", held,
             " of the ", most, " that it may; ", advice);
}

namespace {

/// Where another allocator stands in for glibc's, these calls are the first that glibc's hears of:
/// it then sets itself up, and a thread that comes meanwhile finds that half done.
std::mutex one_at_a_time;

bool add_area(const mi_heap_t*, const mi_heap_area_t* area, void*, size_t, void* sum) {
  *static_cast<int64_t*>(sum) += static_cast<int64_t>(area->used * area->block_size);
  return true;
}

}  // namespace

int64_t heap_in_use() {
  if (mi_heap_visit_blocks != nullptr) {
    int64_t sum = 0;
    mi_heap_visit_blocks(mi_heap_get_default(), false, add_area, &sum);
    return sum;
  }
  const std::lock_guard lock(one_at_a_time);
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

void trim_heap() {
  if (mi_collect != nullptr) return mi_collect(true);
  const std::lock_guard lock(one_at_a_time);
  malloc_trim(0);
}

void return_freed_memory_at_once() {
  if (mi_option_set != nullptr) mi_option_set(mi_option_decommit_delay, 0);
}

}  // namespace shardrun
