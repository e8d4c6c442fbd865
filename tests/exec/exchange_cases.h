// What every exchange must do, on any communicator: run by local ranks and under mpirun.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::test {

/// Random windows and blocks of random tensors over every mesh of world.size() ranks and up to
/// three axes: halo_exchange, halo_add and block_exchange, with empty shards, halos wider than
/// neighbours, two cut dims (corners) and dims cut by two axes. Collective. Fails with what is
/// wrong.
void check_exchanges(Communicator& world);

/// Random numbers that name rows of random tensors, over the same meshes: row_route, then
/// row_fetch, and row_add of sums, maxima and minima, with bounds that are just met. Collective.
void check_row_exchanges(Communicator& world);

}  // namespace shardrun::test
