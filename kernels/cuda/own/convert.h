// Conversion from f32 to bf16, rounded, and back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardrun::cuda {

void launch_narrow(cudaStream_t stream, const float* from, void* to_bf16, int64_t count);
void launch_widen(cudaStream_t stream, const void* from_bf16, float* to, int64_t count);

}  // namespace shardrun::cuda
