// What the machine has for ranks that run on its processors.
#include "rank_device.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>

#include "base/error.h"

namespace shardrun {

Room HostRank::room() const {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  struct sysinfo info {};
  const int64_t bytes =
      sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : int64_t{1} << 40;
  return {str("machine ", name.data()), name.data(), bytes, false};
}

}  // namespace shardrun
