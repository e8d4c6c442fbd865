// Sums of several ranks' memory on one GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "collectives/communicator.h"

namespace shardrun::cuda {

/// out[i] = in[0][i] op in[1][i] op … as collectives/reduce.h's reduce_in_rank_order says. `out`
/// may be one of `in`.
void launch_reduce(cudaStream_t stream, std::span<const void* const> in, void* out, int64_t count,
                   DType dtype, Reduction op);

/// Loads launch_reduce's kernels on the calling thread's GPU. When they were first launched CUDA
/// might wait for all that the GPU does, such as a collective that waits for a peer (CUDA's
/// programming guide, "Lazy Loading").
void load_reduce();

}  // namespace shardrun::cuda
