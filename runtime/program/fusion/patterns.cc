// The table of patterns.
#include "program/fusion/patterns.h"

#include "program/fusion/rewrites.h"

namespace shardrun {
namespace {

/// In the order in which they are tried: each is a row here and a file of its own.
constexpr void (*kPatterns[])(Program& program, const TakesStep& takes) = {
    fuse_loss_parts,       // reduce_max, cross_entropy_sums, cross_entropy_join -> cross_entropy
    fuse_attention_parts,  // attention_top, attention_sums, attention_join -> attention
    fuse_loss_gradient,    // cross_entropy, cross_entropy_grad -> cross_entropy_and_grad
    fuse_looked_up_rows,   // gather_grad, add -> add_rows
    fuse_norm_residual,    // layer_norm_grad or rms_norm_grad, add -> the norm's gradient
    fuse_weight_casts,     // cast of a weight, matmul -> matmul
    fuse_segment_softmax,  // segment_max, segment_exp_sum, segment_softmax -> segment_softmax
    fuse_post_ops,         // matmul, conv or conv_data_grad, element-wise steps -> *_post
    fuse_operand_sums,     // matmul, reduce_sum of its operand -> matmul_post
};

}  // namespace

void fuse_patterns(Program& program, const TakesStep& takes) {
  for (const auto rewrite : kPatterns) rewrite(program, takes);
}

}  // namespace shardrun
