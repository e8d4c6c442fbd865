// The CUDA backend: cuBLASLt and cuDNN for products and windows, kernels of our own for the rest.
#pragma once

#include "kernels/kernel.h"

namespace shardrun {

/// Implementations for f32 and bf16 (accumulating in f32), best first; the last accepts every call
/// and runs it on the host, with copies back and forth. Preparing needs no GPU, so that a machine
/// without one can plan; what does need one is done when a kernel first runs. Memory and streams
/// are of a cuda::CudaDevice, which the calling thread uses. Results repeat bit for bit.
const KernelList& cuda_kernels();

}  // namespace shardrun
