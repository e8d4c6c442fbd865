// Reductions on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/reduce.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList reduce_kernels() { return reduce_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
