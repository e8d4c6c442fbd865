// Lines: where the lines of a tensor lie along one of its dims.
#pragma once

#include "base/shape.h"
#include "device/cuda/index.h"

namespace shardrun::cuda {

/// Lines of `length` elements that lie `stride` apart.
struct Lines {
  int64_t count = 0, length = 0, stride = 1;

  static Lines of(const Shape& shape, size_t axis) {
    Lines lines;
    lines.length = shape[axis];
    lines.stride =
        element_count(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end()));
    const int64_t all = element_count(shape);
    lines.count = all == 0 ? 0 : all / lines.length;
    return lines;
  }
  /// The first element of a line.
  SR_HOST_DEVICE int64_t at(int64_t line) const {
    return stride == 1 ? line * length : line / stride * length * stride + line % stride;
  }
};

}  // namespace shardrun::cuda
