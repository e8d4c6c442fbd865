// Movement of elements on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/teams.cuh"

namespace shardrun::cuda {

KernelList movement_kernels() { return movement_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
