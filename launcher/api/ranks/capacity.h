// Capacity: the bytes that the devices of a job's ranks have for arenas.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/cost/cluster.h"
#include "ranks/rank_device.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// What each rank's arena can have, and where that is from, for people: "cuda:0 (NVIDIA H100 80GB
/// HBM3) has 84000000000 bytes free for 2 ranks".
struct ArenaLimit {
  int64_t bytes = 0;
  std::string why;
};

/// Of the rank that has least: ranks that share a device share what it has. Throws out_of_memory
/// where libraries alone fill it.
ArenaLimit least_capacity(std::span<const DeviceCapacity> of_ranks, const Cluster& cluster);

/// By rank, of what each tells of its own. Collective over memory of the host.
std::vector<DeviceCapacity> gather_capacities(Communicator& host, const DeviceCapacity& mine);
/// Does each have a device of its own?
bool have_own_devices(std::span<const DeviceCapacity> of_ranks);

/// By rank. Collective; opens the devices, so that what their drivers keep is no longer free.
std::vector<DeviceCapacity> capacities_of_ranks(World& world);

}  // namespace shardrun
