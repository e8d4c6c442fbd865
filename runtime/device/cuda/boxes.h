// Strided copies and sums on a GPU; elements of 1, 2, 4 or 8 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include "base/shape.h"
#include "device/cuda/index.h"

namespace shardrun::cuda {

/// A box of two tensors as loops, the innermost last: as few as they can be.
struct BoxLoops {
  static constexpr int kMost = 8;
  int dims = 0;
  int64_t size[kMost] = {}, from[kMost] = {}, to[kMost] = {};  // strides in elements
  int64_t from_offset = 0, to_offset = 0, count = 1;

  /// A loop inside of all others: none if its size is 1, one with the last if they are one in both
  /// tensors. Throws unsupported if there would be more than kMost.
  void add(int64_t size, int64_t from, int64_t to);
  /// Does all of it lie side by side, in both?
  bool one_piece() const { return dims == 0 || (dims == 1 && from[0] == 1 && to[0] == 1); }
};
BoxLoops loops_of(const Box& src_box, const Box& dst_box, const Box& region);

/// The same in units of so many bytes, for a kernel.
struct BoxMove {
  int64_t unit = 1;
  int dims = 1;
  Divisor size[BoxLoops::kMost];
  int64_t from[BoxLoops::kMost] = {}, to[BoxLoops::kMost] = {};
  int64_t from_offset = 0, to_offset = 0, count = 0;

  struct Place {
    int64_t from, to;
  };
  /// Of the i-th unit in row-major order.
  SR_HOST_DEVICE Place place(int64_t i) const {
    Place at{from_offset, to_offset};
    for (int d = dims - 1; d > 0; --d) {
      const int64_t here = size[d].split(i);
      at.from += here * from[d];
      at.to += here * to[d];
    }
    return {at.from + i * from[0], at.to + i * to[0]};
  }
};
/// Units are as long as the innermost loop, its steps, and where the tensors begin allow.
BoxMove move_of(const BoxLoops& loops, const void* from, const void* to, int64_t element_bytes);

void launch_copy_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                     int64_t element_bytes);
void launch_add_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                    DType dtype);
void launch_fill(cudaStream_t stream, void* to, int64_t count, const void* element,
                 int64_t element_bytes);

}  // namespace shardrun::cuda
