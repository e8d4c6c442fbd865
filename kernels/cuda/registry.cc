// The CUDA kernels' families put together.
#include "kernels/cuda/cublas/even_workspace.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/families.h"

namespace shardrun {

const KernelList& cuda_kernels() {
  static const KernelList list = [] {
    KernelList all;
    for (auto family : {
             cuda::matmul_kernels, cuda::conv_kernels, cuda::attention_kernels, cuda::norm_kernels,
             cuda::softmax_kernels, cuda::optimizer_kernels, cuda::batch_norm_kernels,
             cuda::pool_kernels, cuda::movement_kernels, cuda::elementwise_kernels,
             cuda::reduce_kernels, cuda::indexing_kernels, cuda::segment_kernels,
             cuda::host_kernels,  // accepts everything
         }) {
      for (KernelImpl& impl : family()) {
        impl.prepare = [prepare = std::move(impl.prepare)](const KernelCall& call) {
          return cuda::with_even_workspace(prepare(call));
        };
        all.push_back(std::move(impl));
      }
    }
    return all;
  }();
  return list;
}

}  // namespace shardrun
