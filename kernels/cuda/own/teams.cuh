// How kernels of our own are launched: OnGpu for what is written as bodies (team.h).
#pragma once

#include <cmath>

#include "device/cuda/boxes.h"
#include "device/cuda/launch.cuh"
#include "kernels/cuda/own/team.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// size() threads in a line along x of a block, a power of two of 32 to 1024. Sums are made in one
/// order whatever happens, and are the same bits in all threads.
class GpuTeam {
 public:
  SR_HOST_DEVICE GpuTeam(int rank, int size, double* shared)
      : rank_(rank), size_(size), shared_(shared) {}
  SR_HOST_DEVICE int rank() const { return rank_; }
  SR_HOST_DEVICE int size() const { return size_; }

  template <class V>
  SR_HOST_DEVICE V sum(V value) const {
    return fold(
        value, [](V a, V b) { return a + b; }, V{0});
  }
  /// NaN counts as nothing.
  SR_HOST_DEVICE float max(float value) const {
    return fold(
        value, [](float a, float b) { return a > b || b != b ? a : b; }, -INFINITY);
  }
  /// join(join(a, b), …) of all; join(a, nothing) is a.
  template <class V, class F>
  SR_HOST_DEVICE V fold(V value, const F& join, [[maybe_unused]] V nothing) const {
#ifdef __CUDA_ARCH__
    for (int k = 16; k > 0; k /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, k));
    if (size_ == 32) {
      __syncwarp();  // as __syncthreads does: what was read before is written only behind it
      return value;
    }
    V* warps = reinterpret_cast<V*>(shared_);
    const int lane = rank_ % 32;
    if (lane == 0) warps[rank_ / 32] = value;
    __syncthreads();
    value = lane < size_ / 32 ? warps[lane] : nothing;
    for (int k = 16; k > 0; k /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, k));
    __syncthreads();  // the next one writes there again
#else
    (void)join;
#endif
    return value;
  }

 private:
  int rank_, size_;
  double* shared_;  // [32]
};

/// The threads of the largest team that does a row of the body: its kMostTeam, or all of a block. A
/// thread of 1024 has 64 registers, whatever it needs; of fewer it may have more.
template <class Body>
constexpr int most_team() {
  if constexpr (requires { Body::kMostTeam; }) {
    return Body::kMostTeam;
  } else {
    return 1024;
  }
}

template <class Body>
__global__ void __launch_bounds__(most_team<Body>())
    rows_kernel(int64_t rows, const __grid_constant__ Body body) {
  __shared__ double shared[32];
  const GpuTeam team(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), shared);
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += step)
    body(team, row);
}

/// Where the bodies of a kernel list run: on the stream of the arguments.
struct OnGpu {
  /// body(i) for each i of [0, count).
  template <class Body>
  static void each(const KernelArgs& args, int64_t count, const Body& body, const char* name) {
    for_each(static_cast<cudaStream_t>(args.stream), count, body, name);
  }

  /// body(team, row) for each row of [0, rows), with a team for rows that have `work` steps.
  template <class Body>
  static void rows(const KernelArgs& args, int64_t rows, int64_t work, const Body& body,
                   const char* name) {
    if (rows == 0) return;
    constexpr int64_t kThreads = 256, kMostBlocks = 132 * 64;
    constexpr unsigned kMostTeam = most_team<Body>();
    static_assert(kMostTeam >= kThreads);
    unsigned team = 32;  // by the shape alone: it decides in which order is summed
    while (team < kMostTeam && int64_t{team} * 8 < work) team *= 2;
    const unsigned each = team == 32 ? kThreads / 32 : 1;
    const auto blocks = static_cast<unsigned>(std::min((rows + each - 1) / each, kMostBlocks));
    const auto stream = static_cast<cudaStream_t>(args.stream);
    rows_kernel<<<blocks, dim3(team, each), 0, stream>>>(rows, body);
    check_launch(stream, name);
  }

  static void copy(const KernelArgs& args, void* to, const void* from, const BoxLoops& loops,
                   int64_t element_bytes) {
    launch_copy_box(static_cast<cudaStream_t>(args.stream), from, to, loops, element_bytes);
  }
};

}  // namespace shardrun::cuda
