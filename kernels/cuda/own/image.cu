// Batch norm and pools on the GPU.
#include "kernels/cuda/cudnn/cudnn_image.h"
#include "kernels/cuda/cudnn/on_cudnn.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/teams.cuh"

namespace shardrun::cuda {
namespace {

struct OnGpuOrCudnn : OnGpu, OnCudnn {};

/// cuDNN's before our own.
KernelList joined(KernelList first, KernelList second) {
  for (KernelImpl& impl : second) first.push_back(std::move(impl));
  return first;
}

}  // namespace

KernelList batch_norm_kernels() {
  return joined(cudnn_batch_norm_kernels_on<OnGpuOrCudnn>(false), batch_norm_kernels_on<OnGpu>());
}
KernelList pool_kernels() {
  return joined(cudnn_pool_kernels_on<OnGpuOrCudnn>(false), pool_kernels_on<OnGpu>());
}
KernelList images_by_cudnn() {
  return joined(cudnn_pool_kernels_on<OnGpuOrCudnn>(true),
                cudnn_batch_norm_kernels_on<OnGpuOrCudnn>(true));
}

}  // namespace shardrun::cuda
