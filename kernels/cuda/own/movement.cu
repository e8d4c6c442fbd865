// Movement of elements on the GPU.
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/movement.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {

KernelList movement_kernels() { return movement_kernels_on<OnGpu>(); }

}  // namespace shardrun::cuda
