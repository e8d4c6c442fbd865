// softmax, cross_entropy and their gradients on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/softmax.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList softmax_kernels() { return softmax_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
