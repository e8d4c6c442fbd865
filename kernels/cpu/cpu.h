// The CPU backend: oneDNN for products, OpenMP and SIMD loops of our own for everything else.
#pragma once

#include "kernels/kernel.h"
#include "program/ops/weight_layout.h"

namespace shardrun {

/// Implementations for f32 and bf16 (computing in f32), best first. A kernel runs on as many
/// threads as omp_get_max_threads() says in the calling thread, both when prepared (workspace is
/// per thread) and when run, and all of them must come (omp_get_dynamic() is false); several ranks
/// may be threads of one process. Results repeat bit for bit.
const KernelList& cpu_kernels();

/// How the kernel that runs a product or a convolution reads its weights, operand 1, fastest; none
/// if as they lie, or if it gains nothing by another layout. It takes them so as a rearranged
/// operand (graph/rearranged.h).
std::optional<WeightLayout> packed_weights(const KernelCall& call);

std::string onednn_version();  // "2.6.3"

}  // namespace shardrun
