// What every exchange must do, on any communicator: run by local ranks and under mpirun.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::testing {

/// Random windows and blocks of random tensors over every mesh of world.size() ranks and up to
/// three axes: halo_exchange, halo_add and block_exchange, with empty chunks, halos wider than
/// neighbours, two cut dims (corners) and dims cut by two axes. Collective. Fails with what is
/// wrong.
void check_exchanges(Communicator& world);

}  // namespace shardrun::testing
