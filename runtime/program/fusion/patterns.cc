// The table of patterns.
#include "program/fusion/patterns.h"

#include "program/fusion/rewrites.h"

namespace shardrun {
namespace {

constexpr FusionPattern kPatterns[] = {
    {"loss_gradient", "cross_entropy, cross_entropy_grad -> cross_entropy_and_grad",
     fuse_loss_gradient},
    {"looked_up_rows", "gather_grad, add -> add_rows", fuse_looked_up_rows},
    {"norm_residual", "layer_norm_grad or rms_norm_grad, add -> the norm's gradient",
     fuse_norm_residual},
    {"weight_cast", "cast of a weight, matmul -> matmul", fuse_weight_casts},
    {"segment_softmax", "segment_max, segment_exp_sum, segment_softmax -> segment_softmax",
     fuse_segment_softmax},
    {"post_ops", "matmul, conv or conv_data_grad, element-wise steps -> *_post", fuse_post_ops},
    {"operand_sum", "matmul, reduce_sum of its operand -> matmul_post", fuse_operand_sums},
};

}  // namespace

std::span<const FusionPattern> fusion_patterns() { return kPatterns; }

void fuse_patterns(Program& program, const TakesStep& takes) {
  for (const FusionPattern& pattern : fusion_patterns()) pattern.rewrite(program, takes);
}

}  // namespace shardrun
