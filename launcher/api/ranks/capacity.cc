// Each rank tells of its device; the least fraction counts.
#include "ranks/capacity.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "base/error.h"
#include "ranks/backend.h"
#include "ranks/ranks.h"
#include "ranks/world.h"

namespace shardrun {

ArenaLimit least_capacity(std::span<const DeviceCapacity> of_ranks, const Cluster& cluster) {
  ArenaLimit out;
  // Ranks that share a device reach each other's memory (collectives/nccl/connection.cc).
  const bool connected = of_ranks.size() > 1 && have_own_devices(of_ranks);
  for (const DeviceCapacity& mine : of_ranks) {
    const auto shares = [&](const DeviceCapacity& capacity) { return capacity.id == mine.id; };
    const int64_t ranks = std::count_if(of_ranks.begin(), of_ranks.end(), shares);
    int64_t libraries = 0;
    if (mine.libraries)
      libraries = cluster.library_bytes + (connected ? cluster.communicator_bytes : 0);
    const int64_t bytes = mine.bytes / ranks - libraries - mine.process_bytes;
    std::string why = str(mine.device, " has ", mine.bytes, " bytes free for ", ranks,
                          ranks == 1 ? " rank" : " ranks");
    if (libraries > 0) why += str(", of which libraries take ", libraries, " of each");
    if (mine.process_bytes > 0)
      why += str(", of which the process takes ", mine.process_bytes, " of each");
    SR_REQUIRE(bytes > 0, out_of_memory, why, ": nothing is left for weights");
    if (out.why.empty() || bytes < out.bytes) out = {bytes, std::move(why)};
  }
  return out;
}

std::vector<DeviceCapacity> gather_capacities(Communicator& host, const DeviceCapacity& mine) {
  struct Sent {
    std::array<char, 256> device, id;
    int64_t bytes, process_bytes;
    bool libraries;
  };
  const auto text = [](const std::string& from) {
    std::array<char, 256> out{};
    std::copy_n(from.begin(), std::min(from.size(), out.size() - 1), out.begin());
    return out;
  };
  const Sent sent{text(mine.device), text(mine.id), mine.bytes, mine.process_bytes, mine.libraries};
  std::vector<Sent> all(static_cast<size_t>(host.size()));
  host.all_gather(&sent, all.data(), std::vector<int64_t>(all.size(), sizeof sent), DType::u8);
  std::vector<DeviceCapacity> out;
  for (const Sent& of : all)
    out.push_back(
        {of.device.data(), {of.id.data(), of.id.size()}, of.bytes, of.libraries, of.process_bytes});
  return out;
}

bool have_own_devices(std::span<const DeviceCapacity> of_ranks) {
  std::set<std::string> ids;
  for (const DeviceCapacity& capacity : of_ranks) ids.insert(capacity.id);
  return ids.size() == of_ranks.size();
}

std::vector<DeviceCapacity> capacities_of_ranks(World& world) {
  std::vector<DeviceCapacity> out;
  std::mutex mutex;  // thread ranks share it
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    comm.barrier();  // all have
    DeviceCapacity mine = on->capacity();
    if (!world.impl().mpi) mine.process_bytes /= world.size();
    std::vector<DeviceCapacity> all = gather_capacities(comm, mine);
    const std::lock_guard lock(mutex);
    out = std::move(all);
  });
  return out;
}

}  // namespace shardrun
