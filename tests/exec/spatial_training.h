// A small image network trained under random strategies, windows and blocks preferred, on any
// communicator: run by local ranks and under mpirun.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::test {

/// Trains on meshes of world.size() ranks under several random plans and compares losses and
/// parameters with the unsharded interpreter; the arena is as large as was predicted. Collective.
/// Returns how many exchanges rank 0's programs ran in a step, all plans together.
int64_t check_spatial_training(Communicator& world, int plans);

}  // namespace shardrun::test
