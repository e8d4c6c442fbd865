// The CPU kernels' families; registry.cc puts their lists together.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "program/ops/weight_layout.h"

namespace shardrun::cpu {

KernelList elementwise_kernels();
KernelList reduce_kernels();
KernelList arg_extreme_kernels();
KernelList top_k_kernels();
KernelList scan_kernels();
KernelList movement_kernels();
KernelList indexing_kernels();
KernelList scatter_kernels();
KernelList matmul_kernels();
KernelList conv_kernels();
KernelList depthwise_kernels();  // where they accept, faster than conv_kernels
KernelList pack_kernels();       // weights, for both
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

/// packed_weights (cpu.h) of these families.
std::optional<WeightLayout> matmul_layout(const KernelCall& call);
std::optional<WeightLayout> conv_layout(const KernelCall& call);

}  // namespace shardrun::cpu
