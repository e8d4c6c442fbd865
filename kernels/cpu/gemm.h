// Gemm: one oneDNN matmul with its strides fixed, made once and run often.
#pragma once

#include <memory>
#include <string>

#include "base/shape.h"
#include "kernels/cpu/pack.h"

namespace shardrun::cpu {

/// c[batch…, m, n] (+)= a[batch…, m, k] b[batch…, k, n]. Dims and strides in elements; all three
/// have the same rank.
struct GemmShape {
  Shape a, a_strides, b, b_strides, c, c_strides;
  DType in = DType::f32, out = DType::f32;  // f32 -> f32, bf16 -> bf16 or f32
  bool accumulate = false;
  bool one_thread = false;   // for use inside parallel regions of as many threads as there are now
  bool b_in_blocks = false;  // b[k, n] lies as blocks() says, b_strides is not asked
};

class Gemm {
 public:
  /// Null, with the reason in *why, if oneDNN has no fast implementation for these strides and
  /// types.
  static std::shared_ptr<const Gemm> make(const GemmShape& shape, std::string* why);
  virtual ~Gemm() = default;

  virtual int64_t scratch_bytes() const = 0;
  virtual BlockLayout blocks() const = 0;  // of b, where GemmShape::b_in_blocks
  /// Scratch is 64-byte aligned. Where GemmShape::one_thread the threads of a parallel region may
  /// run it at once, each with scratch of its own; else one run at a time.
  virtual void run(const void* a, const void* b, void* c, void* scratch) const = 0;
};

}  // namespace shardrun::cpu
