// A shape as three dims: those before an axis, the axis, and those behind it.
#pragma once

#include "base/shape.h"

namespace shardrun {

/// [2, 5, 4, 3] around axis 1 is [2, 5, 12].
struct Around {
  int64_t outer = 1, extent = 1, inner = 1;

  Around(const Shape& shape, int64_t axis) {
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d)
      (d < axis ? outer : d > axis ? inner : extent) *= shape[static_cast<size_t>(d)];
  }
};

}  // namespace shardrun
