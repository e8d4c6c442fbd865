// Indexing on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/indexing.h"
#include "kernels/cuda/teams.cuh"

namespace shardrun::cuda {

KernelList indexing_kernels() { return indexing_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
