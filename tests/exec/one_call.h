// Training with neighbouring sums over ranks in one call each, against the same with one for each.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::test {

/// A small GPT for some steps under plans for `world`'s ranks, with uneven shards: the same losses
/// and parameters bit for bit, as many bytes as predicted, and fewer calls. Every rank of `world`
/// calls it.
void check_one_call(Communicator& world);

}  // namespace shardrun::test
