// OnCudnn: the GPU, for CudnnOrOwn (cudnn_or_own.h).
#pragma once

#include "kernels/cuda/cudnn/cudnn.h"
#include "kernels/cuda/measure.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

struct OnCudnn {
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

}  // namespace shardrun::cuda
