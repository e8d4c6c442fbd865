// Which communicator ranks can have: decided from where they sit, the same on every rank.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "collectives/nccl/cuda_communicator.h"

namespace shardrun::cuda {

/// A rank alone needs no NCCL. NCCL refuses two ranks on one GPU (before 2.30; later versions serve
/// them slowly).
Connection connection_of(const std::vector<Seat>& seats) {
  if (seats.size() == 1) return Connection::peers;
  std::map<std::string, size_t> first;
  for (size_t r = 0; r < seats.size(); ++r) {
    const auto [found, fresh] = first.emplace(seats[r].gpu, r);
    if (fresh) continue;
    const bool together = std::all_of(seats.begin(), seats.end(), [&](const Seat& seat) {
      return seat.machine == seats[0].machine;
    });
    SR_REQUIRE(together, invalid_input, "ranks ", found->second, " and ", r,
               " have the same GPU, and the job's ranks are on several machines: start as many "
               "ranks on each machine as it has GPUs");
    return Connection::peers;
  }
  return Connection::nccl;
}

}  // namespace shardrun::cuda
