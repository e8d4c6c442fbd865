// Runs of elements of a dense tensor, as boxes.
#pragma once

#include <vector>

#include "base/shape.h"

namespace shardrun {

/// The boxes that elements [first, first + count) of a tensor of `shape` make up, counted
/// row-major, in order: [2, 9) of [4, 3] are [0:1, 2:3], [1:3, 0:3].
std::vector<Box> boxes_of_run(const Shape& shape, int64_t first, int64_t count);

}  // namespace shardrun
