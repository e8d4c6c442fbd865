// The CUDA kernels' families; registry.cc puts their lists together.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cuda {

KernelList elementwise_kernels();
KernelList matmul_kernels();
KernelList conv_kernels();
KernelList attention_kernels();
KernelList attention_by_products();  // of attention_kernels' those without cuDNN
KernelList indexing_kernels();
KernelList movement_kernels();
KernelList reduce_kernels();
KernelList norm_kernels();
KernelList segment_kernels();
KernelList softmax_kernels();
KernelList optimizer_kernels();
KernelList batch_norm_kernels();
KernelList pool_kernels();
/// Of batch norm and pools, and of attention, what cuDNN does, by cuDNN even where our own kernels
/// are faster; running throws Error(device) where cuDNN has no plan.
KernelList images_by_cudnn();
KernelList attention_by_cudnn();
/// conv_kernels by one of cuDNN's plans, or the last there is, whatever is faster.
KernelList conv_by_plan(size_t plan);
KernelList host_kernels();  // any op

}  // namespace shardrun::cuda
