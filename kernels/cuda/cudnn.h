// CudnnGraph: one convolution or attention through cuDNN, its shapes fixed, its plan made when it
// first runs. No types of cuDNN's here: its headers are read in one file.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/shape.h"

namespace shardrun::cuda {

/// x [N, C, …], w [O, C / groups, …], y [N, O, …], of 2 or 3 spatial dims, each with its strides:
/// any order of dims in memory.
struct CudnnConvolution {
  enum class Pass { forward, data, weights };
  Pass pass = Pass::forward;
  Shape x, x_strides, w, w_strides, y, y_strides;
  Shape low, high, strides, dilations;
  DType dtype = DType::f32;          // of operands and results
  DType weights_dtype = DType::f32;  // of the weights' gradient
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
};

class CudnnGraph {
 public:
  virtual ~CudnnGraph() = default;
  /// Makes the plan, if there is none: on the GPU that the thread uses. False, with cuDNN's reason
  /// in *why: it has none that fits the workspace.
  virtual bool prepare(std::string* why) = 0;
  /// After prepare. Convolutions: the two operands, the result. Attention: q, k, v, y, lse; its
  /// gradient: q, k, v, y, dy, lse, dq, dk, dv. All on boundaries of 16 bytes. The first run
  /// outside of a recording measures convolutions' candidates, and writes the result several times.
  virtual void run(std::span<void* const> tensors, void* workspace, void* stream) = 0;
};

/// Need no GPU.
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnConvolution& convolution);
std::unique_ptr<CudnnGraph> make_cudnn_graph(const CudnnAttention& attention);

}  // namespace shardrun::cuda
