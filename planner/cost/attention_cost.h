// Seconds of attention and its gradient on a GPU.
#pragma once

#include <span>
#include <vector>

#include "graph/op_def.h"
#include "planner/cost/kernel_cost.h"

namespace shardrun {

/// Attention of `heads` heads of all samples, or its gradient.
struct AttentionWork {
  bool gradient = false, causal = false;
  bool fused = false;  // one kernel keeps scores to itself; else they lie in memory
  DType dtype = DType::f32;
  double heads = 0, queries = 0, keys = 0, width = 0, value_width = 0;
};
/// `cost`: attention or attention_grad. Fused is what a GPU's kernels take (refuse_fused_attention)
/// where a rank has all keys, and with a causal mask also all queries.
AttentionWork attention_work(CostClass cost, const Node& node, std::span<const TensorType> in);

/// Its products where scores lie in memory. Forward: of queries with keys, of weights with values.
/// Gradient: of queries with keys, of dy with values; then those that make dv, dq and dk.
std::vector<MatmulWork> attention_products(const AttentionWork& work);

/// Besides one launch, and the operands' way from memory. Needs `cluster.tiles`.
///
/// A fused kernel (Dao, "FlashAttention-2", 2023, algorithms 1 and 2) takes tiles of 128 queries
/// and 128 keys, on the edges and on a causal diagonal whole ones. A pair of a query and a key
/// takes the products, one exponential, and f32 instructions:
///
///     forward   4: scale and subtract the highest, the highest, the sum, convert to bf16;
///               and y is scaled once for each tile of keys
///     gradient  6: scale and subtract lse, subtract delta, multiply by p, scale, convert p and ds
///
/// These parts are added up, as if none ran while another does. The gradient that repeats bit for
/// bit also takes ds through memory in bf16, and makes dq of it in a second kernel (cuDNN's
/// frontend, scaled_dot_product_flash_attention.h: use_dp_workspace).
///
///     H200, 32 x 12 heads of 64, 1024 tokens, causal: 226 million pairs in tiles. Forward 256
///     FLOPs of each at 784 TFLOP/s, an exponential at 3.77e12 and 4.5 instructions at 30e12 a
///     second are 74 + 60 + 34 = 168 us. Products of pairs that are seen alone take 66.
///
/// Where scores lie in memory, products and the row kernel between them pass over those of all
/// pairs: over scores in f32, over weights in the operands' type (kernels/cuda/own/attention.h).
/// Forward scores and weights are written and read once. The gradient writes and reads two scores,
/// writes weights and the gradients of scores, and reads those three times in all.
double attention_seconds(const AttentionWork& work, const Cluster& cluster);

}  // namespace shardrun
