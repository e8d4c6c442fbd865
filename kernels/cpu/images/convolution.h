// Convolution: one convolution or gradient with its shapes fixed, made once and run often.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/products/epilogue.h"
#include "program/ops/weight_layout.h"

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
  // What follows it within its step: as oneDNN's post-ops, or on rows of the result that are in
  // cache still. At most one of the two.
  std::vector<GemmPost> post = {};
  std::shared_ptr<const Epilogue> epilogue = nullptr;
  bool packed = false;  // weights lie as weights_layout() says, in the last operand

  const Shape& made() const { return pass == Pass::data ? in : out; }  // of the result's positions
  int64_t made_channels() const {
    return groups * (pass == Pass::data ? in_channels : out_channels);
  }
};

/// What conv, conv_data_grad or conv_weight_grad is called with.
ConvolutionShape convolution_shape(const KernelCall& call);
/// Is every product with padding, or nothing there at all? Then the result is zero.
bool is_zero(const ConvolutionShape& shape);

/// pack_weights, by oneDNN.
std::optional<std::string> refuses_packing(const KernelCall& call);
PreparedKernel prepare_packing(const KernelCall& call);

class Convolution {
 public:
  /// oneDNN's. Null, with the reason in *why, if it cannot run it. Nothing may be empty, and at
  /// least one window must meet the operand.
  static std::shared_ptr<const Convolution> make(const ConvolutionShape& shape, std::string* why);
  virtual ~Convolution() = default;

  /// None: as they are given.
  virtual std::optional<WeightLayout> weights_layout() const { return std::nullopt; }
  /// Is it made for one channel a group, or does it compute products of each with others, too?
  virtual bool of_channels_alone() const { return false; }
  virtual int64_t scratch_bytes() const = 0;  // layouts and scratchpads, at most one run at a time
  /// forward: x, w -> y. data: dy, w -> dx. weights: x, dy -> dw. Behind these operands stand those
  /// of what follows.
  virtual void run(const KernelArgs& args) const = 0;
};

}  // namespace shardrun::cpu
