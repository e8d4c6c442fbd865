// Each rank tells of its device; the least share counts.
#include "room.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "backend.h"
#include "base/error.h"
#include "world.h"

namespace shardrun {

ArenaRoom least_room(std::span<const Room> of_ranks, const Cluster& cluster) {
  ArenaRoom out;
  for (const Room& mine : of_ranks) {
    const auto shares = [&](const Room& room) { return room.id == mine.id; };
    const int64_t ranks = std::count_if(of_ranks.begin(), of_ranks.end(), shares);
    int64_t libraries = 0;
    if (mine.libraries)
      libraries = cluster.library_bytes + (of_ranks.size() > 1 ? cluster.communicator_bytes : 0);
    const int64_t bytes = mine.bytes / ranks - libraries;
    std::string why = str(mine.device, " has ", mine.bytes, " bytes free for ", ranks,
                          ranks == 1 ? " rank" : " ranks");
    if (libraries > 0) why += str(", of which libraries take ", libraries, " of each");
    SR_REQUIRE(bytes > 0, out_of_memory, why, ": nothing is left for weights");
    if (out.why.empty() || bytes < out.bytes) out = {bytes, std::move(why)};
  }
  return out;
}

std::vector<Room> rooms_of_ranks(World& world) {
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
  std::vector<Room> out;
  std::mutex mutex;  // thread ranks share it
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    comm.barrier();  // all have
    const Room room = on->room();
    const Told mine{text(room.device), text(room.id), room.bytes, room.libraries};
    std::vector<Told> all(static_cast<size_t>(comm.size()));
    comm.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), sizeof mine), DType::u8);
    const std::lock_guard lock(mutex);
    out.clear();
    for (const Told& told : all)
      out.push_back(
          {told.device.data(), {told.id.data(), told.id.size()}, told.bytes, told.libraries});
  });
  return out;
}

}  // namespace shardrun
