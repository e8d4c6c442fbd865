// The reference kernels' families; registry.cc puts their lists together.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::reference {

KernelList elementwise_kernels();
KernelList reduce_kernels();
KernelList movement_kernels();
KernelList indexing_kernels();
KernelList matmul_kernels();
KernelList conv_kernels();
KernelList pool_kernels();
KernelList batch_norm_kernels();
KernelList norm_kernels();
KernelList segment_kernels();
KernelList softmax_kernels();
KernelList attention_kernels();
KernelList cached_attention_kernels();
KernelList recurrence_kernels();
KernelList random_kernels();
KernelList optimizer_kernels();
KernelList post_kernels();

}  // namespace shardrun::reference
