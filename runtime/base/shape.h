// Shapes, boxes (a rank's shard of a tensor, say) and row-major arithmetic on them.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace shardrun {

using Shape = std::vector<int64_t>;  // row-major dims; empty = scalar

struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// Half-open interval [begin, begin + size) of one dim. size may be 0.
struct Range {
  int64_t begin = 0;
  int64_t size = 0;
  int64_t end() const { return begin + size; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// One Range per dim: which part of the global tensor a local tensor is.
using Box = std::vector<Range>;

int64_t element_count(
    const Shape& shape);  // 1 for a scalar; throws invalid_input on overflow or a negative dim
int64_t byte_size(const TensorType& type);
std::vector<Shape> shapes_of(std::span<const TensorType> types);
Shape row_major_strides(const Shape& shape);  // in elements

Box full_box(const Shape& shape);
Shape box_shape(const Box& box);
Box intersect(const Box& a, const Box& b);  // ranges of size 0 where disjoint
bool is_empty(const Box& box);

/// The rows of shard `index` of `parts` of [0, extent), each ceil(extent / parts): 10 over 4 is
/// 3,3,3,1 and 5 over 4 is 2,2,1,0.
Range shard_range(int64_t extent, int64_t parts, int64_t index);

std::string to_string(const Shape& shape);      // "[2, 3]"
std::string to_string(const TensorType& type);  // "f32[2, 3]"
inline std::ostream& operator<<(std::ostream& out, const TensorType& t) {
  return out << to_string(t);
}

/// Copies the elements of `region` (global coordinates, inside both boxes) from a dense row-major
/// tensor holding `src_box` to one holding `dst_box`. Pack, unpack and slice are all this.
void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box, const Box& region,
              int64_t element_bytes);

}  // namespace shardrun
