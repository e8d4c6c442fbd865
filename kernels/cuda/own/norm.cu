// layer_norm and rms_norm on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/norm.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList norm_kernels() { return norm_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
