// call_back: a caller's function, in the middle of what all ranks do.
#pragma once

#include "shardrun/shardrun.h"

namespace shardrun {

/// Calls `function`, if there is one. What it throws is of this rank alone, so that the others are
/// ended: of a Failure, too, that a call in another World threw on all ranks of that.
template <class F, class... Arguments>
void call_back(const F& function, const Arguments&... arguments) {
  if (!function) return;
  try {
    function(arguments...);
  } catch (const Failure& e) {
    throw Failure(e.kind() == Failure::Kind::peer ? Failure::Kind::run : e.kind(), e.what());
  }
}

}  // namespace shardrun
