// AdamW, Adam and SGD on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/optimizer.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList optimizer_kernels() { return optimizer_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
