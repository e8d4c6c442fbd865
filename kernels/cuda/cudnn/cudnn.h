// CudnnGraph: one call of cuDNN, its shapes fixed, its plan made when it first runs. No types of
// cuDNN's here: its headers are read in one file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/shape.h"
#include "kernels/cuda/autotune.h"

namespace shardrun::cuda {

/// The most elements of a tensor, with what lies between its dims: cuDNN documents "2
/// Giga-elements" (cudnnSetTensorNdDescriptor), and does not say which engines count further.
inline constexpr int64_t kMostCudnnElements = INT32_MAX;

/// x [N, C, …], w [O, C / groups, …], y [N, O, …], of 2 or 3 spatial dims, each with its strides:
/// any order of dims in memory.
struct CudnnConvolution {
  enum class Pass { forward, data, weights };
  Pass pass = Pass::forward;
  Shape x, x_strides, w, w_strides, y, y_strides;
  Shape low, high, strides, dilations;
  DType dtype = DType::f32;  // of operands and results
  bool tf32 = false;

  std::string key() const;
  int64_t workspace_bytes() const;  // by the shape alone, at most 256 MiB
};

/// Attention of `heads` heads, bf16 and dense: q [heads, T, D], k [heads, S, D], v [heads, S, Dv].
struct CudnnAttention {
  bool gradient = false;
  int64_t heads = 1, queries = 1, keys = 1, width = 8, value_width = 8;
  double scale = 1;
  bool causal = false;

  std::string key() const;
  int64_t workspace_bytes() const;
  /// Of the largest tensor that is read or written.
  int64_t most_elements() const {
    return heads * std::max(queries, keys) * std::max(width, value_width);
  }
};

/// A pool of images whose channels are last in memory: x and y [N, C, …] of 2 or 3 spatial dims. A
/// sum is cuDNN's mean with padding counted, times the window's offsets, rounded once. Of maxima
/// the gradient alone: cuDNN 9.19 on an H200 loses NaN among them, whatever its descriptor says.
/// Needs no workspace.
struct CudnnPool {
  bool max = false, gradient = false;
  Shape x, y;
  Shape kernel, strides, low, high;
  DType dtype = DType::f32;
  /// Of the offsets of maxima, row-major in the window with its padding, the first of equals: u8,
  /// of which cuDNN reads all below 128, or i32.
  DType which = DType::u8;

  std::string key() const;
};

/// What batch norm does to each element of images x [N, C, …] of 2 or 3 spatial dims, whose
/// channels are last in memory, with f32 numbers of channels. Needs no workspace.
///   y  = (x - mean) slope + bias [+ residual], with relu at least 0
///   dx = (g - offset - (x - mean) tilt) slope; g = dy, with relu 0 where (x - mean) slope + bias
///        is not above 0
/// Its relu makes the largest f32 of an infinity, and keeps NaN.
struct CudnnBatchNorm {
  bool gradient = false, relu = false, residual = false;
  Shape x;
  DType dtype = DType::f32;

  std::string key() const;
};

class CudnnGraph {
 public:
  virtual ~CudnnGraph() = default;
  /// Makes the plan, if there is none: on the GPU that the thread uses. False, with cuDNN's reason
  /// in *why: it has none that fits the workspace.
  virtual bool prepare(std::string* why) = 0;
  /// Whether cuDNN has a plan for a GPU that need not be there, which `gpu` describes as cuDNN does
  /// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). It wants the driver's library, or CUDA's stub of
  /// it, nevertheless. False, with the reason in *why.
  virtual bool has_plan_for(const std::string& gpu, std::string* why) const = 0;
  /// After prepare. Convolutions: the two operands, the result. Attention: q, k, v, y, lse; its
  /// gradient: q, k, v, y, dy, lse, dq, dk, dv. Pools: x, y; their gradients: dy, with max which,
  /// dx. Batch norm: x, mean, slope, bias, [residual,] y; its gradient: dy, x, mean, slope, offset,
  /// tilt, [bias,] dx. All on boundaries of 16 bytes. The first run outside of a recording measures
  /// convolutions' candidates, and writes the result several times.
  virtual void run(std::span<void* const> tensors, void* workspace, void* stream) = 0;
};

/// Of a convolution's plans so many are measured.
inline constexpr size_t kConvolutionPlans = 6;
/// Need no GPU. `plan`: by this of a convolution's plans, or the last there is, whatever is faster.
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnConvolution& convolution,
                                             std::optional<size_t> plan = std::nullopt);
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnAttention& attention);
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnPool& pool);
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnBatchNorm& norm);

/// What was measured of cuDNN's calls on the calling thread's GPU. Throws Error(device) where cuDNN
/// is not installed.
Autotune& tuned_graphs();

}  // namespace shardrun::cuda
