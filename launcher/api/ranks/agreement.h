// Agreement of ranks that each measure which way of doing a call is fastest: they choose alike.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "collectives/communicator.h"

namespace shardrun {

/// What a rank has chosen.
struct Choices {
  /// Where they are kept: ranks that keep them at one place have one choice for each call. Empty:
  /// nowhere.
  std::string place;
  std::function<std::string()> tell;  // as text
  /// Takes, for each call, that of the first rank which knows the call.
  std::function<void(std::span<const std::string> of_ranks)> take;
};

/// Makes ranks choose alike from now on, so that values which several ranks compute, each for
/// itself, are the same bits on all of them: weights that every rank updates by gradients that it
/// has computed from weights alone, and losses by which each decides when to stop. Where the ranks
/// do not keep their choices at one place already, `rehearse` has them made, and the lowest rank's
/// are taken. Collective over `host`.
void agree(Communicator& host, const Choices& choices, const std::function<void()>& rehearse);

}  // namespace shardrun
