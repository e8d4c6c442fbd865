// Softmax over segments on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/segment.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList segment_kernels() { return segment_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
