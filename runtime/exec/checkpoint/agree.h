// Agreement on errors: what one rank meets, all ranks throw.
#pragma once

#include <functional>

#include "collectives/communicator.h"

namespace shardrun {

/// Does it matter which rank met it? Then "rank N: " stands in front, for all but rank 0.
enum class Names { rank, none };

/// Runs `work` on every rank, then throws on all of them the Error of the lowest rank that met one.
/// Collective behind `work`, which itself calls nothing collective.
void together(Communicator& host, const std::function<void()>& work, Names names = Names::rank);

}  // namespace shardrun
