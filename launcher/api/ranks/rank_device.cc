// What the machine has for ranks that run on its processors.
#include "ranks/rank_device.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/process/control_group.h"
#include "base/process/process_memory.h"
#include "base/process/processors.h"
#include "ranks/process_limit.h"

namespace shardrun {
namespace {

/// What a process maps besides its arena after its capacity was asked for: heap, threads' stacks and
/// messages, which were 40 to 60 MiB, and the largest weight while it is read, for which a part is
/// left.
constexpr int64_t kLaterMapped = int64_t{64} << 20;
constexpr int64_t kReadPart = 10;

}  // namespace

DeviceCapacity host_capacity() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  struct sysinfo info {};
  const int64_t bytes =
      sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : int64_t{1} << 40;
  const std::string machine = str("machine ", name.data());
  const std::optional<GroupLimit> limit = memory_limit();
  if (!limit || limit->amount >= static_cast<double>(bytes)) return {machine, name.data(), bytes};
  return {str("the container or control group on ", machine), str("group ", limit->group),
          static_cast<int64_t>(limit->amount)};
}

DeviceCapacity HostRank::capacity() const {
  DeviceCapacity out = host_capacity();
  out.process_bytes = expected_process_bytes();
  const std::optional<AddressSpace> space = address_space();
  if (!space) return out;
  const int64_t free = space->limit - space->mapped - kLaterMapped;
  const int64_t left = free - free / kReadPart + out.process_bytes;
  if (left >= out.bytes / ranks_of_machine()) return out;
  out.id = str("process ", getpid(), " of ", out.id);
  out.device = str("a process whose addresses 'ulimit -v' limits to ", space->limit, " bytes");
  out.bytes = std::max<int64_t>(0, left);
  return out;
}

}  // namespace shardrun
