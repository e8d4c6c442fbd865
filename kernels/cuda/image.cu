// Batch norm and pools on the GPU.
#include "kernels/cuda/cudnn_image.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/teams.cuh"

namespace shardrun::cuda {
namespace {

struct OnGpuOrCudnn : OnGpu {
  template <class Call>
  static std::unique_ptr<CudnnGraph> graph(const Call& call) {
    return make_cudnn_graph(call);
  }
  template <class Once>
  static float time(const KernelArgs& args, const std::string& what, const Once& once) {
    return measure(static_cast<cudaStream_t>(args.stream), what, [&] {
      once();
      return true;
    });
  }
  static Autotune* tuned() {
    try {
      return &tuned_graphs();
    } catch (const Error&) {
      return nullptr;
    }
  }
  static bool may_measure(const KernelArgs& args) {
    return !is_recorded(static_cast<cudaStream_t>(args.stream));
  }
};

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
