// Bits flipped in ranks' memory during a small GPT's training, and what ReplicaCheck says of them.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::test {

/// Under plans for `world`'s ranks, with `flips` of each kind: in a parameter or state between
/// steps, in any value between two operations that use it, and in the result of a collective on its
/// way. Each is found, with the value and the rank, the same sentence on every rank; steps without
/// one are let pass and keep their losses, bit for bit. Every rank of `world` calls it.
void check_flips_are_found(Communicator& world, int flips);

}  // namespace shardrun::test
