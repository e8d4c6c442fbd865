// Each rank tells of its device; the least share counts.
#include "room.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "backend.h"
#include "base/error.h"
#include "ranks/ranks.h"
#include "ranks/world.h"

namespace shardrun {

ArenaRoom least_room(std::span<const Room> of_ranks, const Cluster& cluster) {
  ArenaRoom out;
  // Ranks that share a device reach each other's memory (collectives/nccl/connection.cc).
  const bool connected = of_ranks.size() > 1 && have_own_devices(of_ranks);
  for (const Room& mine : of_ranks) {
    const auto shares = [&](const Room& room) { return room.id == mine.id; };
    const int64_t ranks = std::count_if(of_ranks.begin(), of_ranks.end(), shares);
    int64_t libraries = 0;
    if (mine.libraries)
      libraries = cluster.library_bytes + (connected ? cluster.communicator_bytes : 0);
    const int64_t bytes = mine.bytes / ranks - libraries;
    std::string why = str(mine.device, " has ", mine.bytes, " bytes free for ", ranks,
                          ranks == 1 ? " rank" : " ranks");
    if (libraries > 0) why += str(", of which libraries take ", libraries, " of each");
    SR_REQUIRE(bytes > 0, out_of_memory, why, ": nothing is left for weights");
    if (out.why.empty() || bytes < out.bytes) out = {bytes, std::move(why)};
  }
  return out;
}

std::vector<Room> gather_rooms(Communicator& host, const Room& mine) {
  struct Told {
    std::array<char, 256> device, id;
    int64_t bytes;
    bool libraries;
  };
  const auto text = [](const std::string& from) {
    std::array<char, 256> out{};
    std::copy_n(from.begin(), std::min(from.size(), out.size() - 1), out.begin());
    return out;
  };
  const Told told{text(mine.device), text(mine.id), mine.bytes, mine.libraries};
  std::vector<Told> all(static_cast<size_t>(host.size()));
  host.all_gather(&told, all.data(), std::vector<int64_t>(all.size(), sizeof told), DType::u8);
  std::vector<Room> out;
  for (const Told& of : all)
    out.push_back({of.device.data(), {of.id.data(), of.id.size()}, of.bytes, of.libraries});
  return out;
}

bool have_own_devices(std::span<const Room> of_ranks) {
  std::set<std::string> ids;
  for (const Room& room : of_ranks) ids.insert(room.id);
  return ids.size() == of_ranks.size();
}

std::vector<Room> rooms_of_ranks(World& world) {
  std::vector<Room> out;
  std::mutex mutex;  // thread ranks share it
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    comm.barrier();  // all have
    std::vector<Room> all = gather_rooms(comm, on->room());
    const std::lock_guard lock(mutex);
    out = std::move(all);
  });
  return out;
}

}  // namespace shardrun
