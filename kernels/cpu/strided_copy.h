// StridedCopy: moves elements between two strided layouts; every data movement op is one.
#pragma once

#include "base/shape.h"

namespace shardrun::cpu {

/// dst[dst_base + sum i_d dst_stride_d] = src[src_base + sum i_d src_stride_d] over all i below
/// dims; strides and bases in elements; source strides may be 0 (broadcast) or negative (reversed).
class StridedCopy {
 public:
  StridedCopy(const Shape& dims, const Shape& src_strides, int64_t src_base,
              const Shape& dst_strides, int64_t dst_base, int64_t element_bytes);
  /// out[i] = in[...] where dim d of the dense result is dim perm[d] of the dense operand.
  static StridedCopy transpose(const Shape& shape, const std::vector<int64_t>& perm,
                               int64_t element_bytes);

  void run(const void* src, void* dst) const;

 private:
  Shape dims_, src_, dst_;  // merged; the last dim is innermost
  int64_t src_base_, dst_base_, bytes_;
  int tile_dim_ = -1;  // a dim along which the source is contiguous while the last dim is not
};

}  // namespace shardrun::cpu
