// Gemm: one matmul with its strides fixed, oneDNN's or by tiles, made once and run often.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/shape.h"
#include "kernels/cpu/products/pack.h"

namespace shardrun::cpu {

/// An element-wise op on a Gemm's result before it is rounded: the result so far comes first, the
/// operand second (of gradients it is the other way round). An operand is dense, and as large as
/// the result, as one row of it, or one number.
struct GemmPost {
  std::string op;     // as in the registry; or gelu_tanh, gelu_erf_grad, gelu_tanh_grad
  double alpha = 0;   // of activations that have one
  int64_t count = 0;  // elements of the operand; 0: there is none
  DType dtype = DType::f32;
};

/// At most so many in one product.
inline constexpr size_t kMostPosts = 8;

/// c[batch…, m, n] (+)= a[batch…, m, k] b[batch…, k, n]. Dims and strides in elements; all three
/// have the same rank.
struct GemmShape {
  Shape a, a_strides, b, b_strides, c, c_strides;
  DType in = DType::f32, out = DType::f32;  // f32 -> f32, bf16 -> bf16 or f32
  bool accumulate = false;
  bool one_thread = false;   // for use inside parallel regions of as many threads as there are now
  bool b_in_blocks = false;  // b[k, n] lies as blocks() says, b_strides is not asked
  std::vector<GemmPost> post = {};
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
  /// `operands`: of those post-ops that have one.
  virtual void run(const void* a, const void* b, void* c, void* scratch,
                   std::span<const void* const> operands = {}) const = 0;
};

}  // namespace shardrun::cpu
