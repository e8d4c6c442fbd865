// Tensors whose dims are seen as several: a bias [3 C] as [3, C].
#pragma once

#include <vector>

#include "base/shape.h"

namespace shardrun {

/// Some elements of a value, once in the file's coordinates and once in the value's: the same, in
/// the same order. A pass may have divided dims of the file's shape.
struct Part {
  Box file, value;
};
/// What makes up `box` of a value whose shape divides dims of `file_shape`. Example: of a weight
/// [4, 6], viewed as [4, 3, 2], the box [0:4, 0:3, 1:2] is three columns:
///   {[0:4, 1:2], [0:4, 0:1, 1:2]}, {[0:4, 3:4], [0:4, 1:2, 1:2]}, {[0:4, 5:6], [0:4, 2:3, 1:2]}
/// Throws internal if the one does not divide the other.
std::vector<Part> parts_of(const Shape& file_shape, const Shape& value_shape, const Box& box);

}  // namespace shardrun
