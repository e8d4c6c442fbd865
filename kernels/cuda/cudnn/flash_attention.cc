// Attention on the GPU: cuDNN's before products.
#include "kernels/cuda/cudnn/flash_attention.h"

#include "kernels/cuda/cudnn/on_cudnn.h"
#include "kernels/cuda/families.h"

namespace shardrun::cuda {

KernelList attention_kernels() {
  KernelList products = attention_by_products(),
             list = flash_attention_kernels_on<OnCudnn>(products, false);
  for (KernelImpl& impl : products) list.push_back(std::move(impl));
  return list;
}
KernelList attention_by_cudnn() {
  return flash_attention_kernels_on<OnCudnn>(attention_by_products(), true);
}

}  // namespace shardrun::cuda
