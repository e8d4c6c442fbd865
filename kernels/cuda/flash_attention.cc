// Attention on the GPU: cuDNN's before products.
#include "kernels/cuda/flash_attention.h"

#include "kernels/cuda/families.h"
#include "kernels/cuda/on_cudnn.h"

namespace shardrun::cuda {

KernelList attention_kernels() {
  KernelList products = attention_by_products(),
             list = flash_attention_kernels_on<OnCudnn>(products);
  for (KernelImpl& impl : products) list.push_back(std::move(impl));
  return list;
}

}  // namespace shardrun::cuda
