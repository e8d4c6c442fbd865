// Indexing on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/indexing.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList indexing_kernels() { return indexing_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
