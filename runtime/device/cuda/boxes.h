// Strided copies and sums on a GPU; elements of 1, 2, 4 or 8 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include "base/shape.h"

namespace shardrun::cuda {

/// A box of two dense tensors as loops: dims of size 1 left out, neighbours that lie dense in both
/// joined.
struct BoxLoops {
  static constexpr int kMost = 8;
  int dims = 0;
  int64_t size[kMost] = {}, from[kMost] = {}, to[kMost] = {};  // strides in elements
  int64_t from_offset = 0, to_offset = 0, count = 0;
};
/// Throws unsupported if more than BoxLoops::kMost loops are left.
BoxLoops loops_of(const Box& src_box, const Box& dst_box, const Box& region);

void launch_copy_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                     int64_t element_bytes);
void launch_add_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                    DType dtype);
void launch_fill(cudaStream_t stream, void* to, int64_t count, const void* element,
                 int64_t element_bytes);

}  // namespace shardrun::cuda
