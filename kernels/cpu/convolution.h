// Convolution: one oneDNN convolution or gradient with its shapes fixed, made once and run often.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// Tensors are dense: x [batch, groups * in_channels, …in], w [groups, out_channels, in_channels,
/// …kernel], y [batch, groups * out_channels, …out], or with channels_last x [batch, …in, groups *
/// in_channels] and y alike; channels are those of one group. Result position o meets operand
/// position o * stride + k * dilation - low; low may be negative, and rows of x may be left over
/// (window.h).
struct ConvolutionShape {
  enum class Pass { forward, data, weights };
  Pass pass = Pass::forward;
  int64_t batch = 1, groups = 1, in_channels = 1, out_channels = 1;
  Shape in, out, kernel;  // one entry per spatial dim, 1 to 3 of them
  Shape strides, dilations, low;
  bool channels_last = false;        // x and y need no change of layout then
  DType dtype = DType::f32;          // of operands and results: f32, bf16
  DType weights_dtype = DType::f32;  // of the weights' gradient
};

/// What conv, conv_data_grad or conv_weight_grad is called with.
ConvolutionShape convolution_shape(const KernelCall& call);
/// Is every product with padding, or nothing there at all? Then the result is zero.
bool is_zero(const ConvolutionShape& shape);

class Convolution {
 public:
  /// Null, with the reason in *why, if oneDNN cannot run it. Nothing may be empty, and at least one
  /// window must meet the operand.
  static std::shared_ptr<const Convolution> make(const ConvolutionShape& shape, std::string* why);
  virtual ~Convolution() = default;

  virtual int64_t scratch_bytes() const = 0;  // layouts and scratchpads, at most one run at a time
  /// forward: x, w -> y. data: dy, w -> dx. weights: x, dy -> dw. Scratch is 64-byte aligned.
  virtual void run(const void* a, const void* b, void* result, void* scratch) const = 0;
};

}  // namespace shardrun::cpu
