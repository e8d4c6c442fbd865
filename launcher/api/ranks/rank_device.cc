// What the machine has for ranks that run on its processors.
#include "ranks/rank_device.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "base/error.h"
#include "base/process/control_group.h"
#include "ranks/process_limit.h"

namespace shardrun {

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
  return out;
}

}  // namespace shardrun
