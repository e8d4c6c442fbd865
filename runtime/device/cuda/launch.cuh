// Grids for kernels that do one thing for each element, or for each tile of some.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/cuda.h"

namespace shardrun::cuda {

/// A body for each i of [0, count): a functor, callable from host code too, so that tests without a
/// GPU can run the same body. It stays where the launch put it: a thread that indexed its own copy
/// would do so in local memory.
template <class Body>
__global__ void for_each_kernel(int64_t count, const __grid_constant__ Body body) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) body(i);
}

template <class Body>
void for_each(cudaStream_t stream, int64_t count, const Body& body, std::string_view name) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 132 * 32;  // enough for any GPU; the rest by the stride
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  for_each_kernel<<<blocks, kThreads, 0, stream>>>(count, body);
  check_launch(stream, name);
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads)
    tiles_kernel(int64_t blocks, const __grid_constant__ Body body) {
  __shared__ typename Body::Element tile[Body::kTileElements];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    body.load(block, static_cast<int>(threadIdx.x), tile);
    __syncthreads();
    body.store(block, static_cast<int>(threadIdx.x), tile);
    __syncthreads();  // the next one is loaded there
  }
}

/// For each i of [0, count), body.load(i, thread, tile) by Body::kThreads threads, then body.store,
/// with a tile of Body::kTileElements that they share.
template <class Body>
void for_tiles(cudaStream_t stream, int64_t count, const Body& body, std::string_view name) {
  if (count == 0) return;
  constexpr int64_t kMostBlocks = 132 * 64;
  const auto blocks = static_cast<unsigned>(std::min(count, kMostBlocks));
  tiles_kernel<<<blocks, Body::kThreads, 0, stream>>>(count, body);
  check_launch(stream, name);
}

}  // namespace shardrun::cuda
