// Agreement on errors: what one rank meets, all ranks throw.
#pragma once

#include <functional>
#include <optional>

#include "base/error.h"
#include "collectives/communicator.h"

namespace shardrun {

/// Does it matter which rank met it? Then "rank N: " stands in front, for all but rank 0.
enum class Names { rank, none };

/// Runs `work` on every rank, then returns on all of them the Error of the lowest rank whose work
/// met one; nullopt: none did. What is thrown is the exchange's own: another rank has stopped.
/// Collective behind `work`, which itself calls nothing collective.
std::optional<Error> try_together(Communicator& host, const std::function<void()>& work,
                                  Names names = Names::rank);
/// The same, but throws what the other returns.
void together(Communicator& host, const std::function<void()>& work, Names names = Names::rank);

}  // namespace shardrun
