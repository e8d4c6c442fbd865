// Pages of the system's own.
#include "exec/checkpoint/disk_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "base/error.h"
#include "base/round_up.h"

namespace shardrun {

std::shared_ptr<char> disk_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const auto size = static_cast<size_t>(bytes + kHugePage);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SR_REQUIRE(data != MAP_FAILED, out_of_memory, "memory for checkpoints: asked for ", bytes,
             " bytes, the system has none left");
  const std::shared_ptr<void> owned(data, [size](void* p) { ::munmap(p, size); });
  auto* const begin = reinterpret_cast<char*>(
      round_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(data)), kHugePage));
  ::madvise(begin, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  std::memset(begin, 0, static_cast<size_t>(bytes));
  return {owned, begin};
}

}  // namespace shardrun
