// Batch norm and pools on the GPU.
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/pool.h"
#include "kernels/cuda/teams.cuh"

namespace shardrun::cuda {

KernelList batch_norm_kernels() { return batch_norm_kernels_on<OnGpu>(); }
KernelList pool_kernels() { return pool_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
