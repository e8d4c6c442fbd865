// The attributes of attention and attention_grad, read once for all kernels.
#pragma once

#include <optional>
#include <string>

#include "graph/graph.h"

namespace shardrun {

struct AttentionAttrs {
  double scale = 1;
  double slope = 1;     // of negative scores, before the mask: 1 is no activation
  bool causal = false;  // position t + q_offset sees s <= t + q_offset
  bool has_mask = false;
  int64_t q_offset = 0;  // may be negative: the rank's keys start after its queries
  double dropout = 0;    // > 0: the fields below, and a last operand `step`
  uint64_t seed = 0, key = 0;
  std::vector<int64_t> global_shape;  // [B,H,T,S] of the whole probabilities
  std::vector<int64_t> start;         // where this rank's shard of them begins

  static AttentionAttrs of(const Node& node);

  /// Row-major position, in the whole probabilities, of local element [b, h, t, 0].
  uint64_t dropout_row(int64_t b, int64_t h, int64_t t) const {
    const auto& g = global_shape;
    return static_cast<uint64_t>(
        (((start[0] + b) * g[1] + start[1] + h) * g[2] + start[2] + t) * g[3] + start[3]);
  }
};

/// Why GPUs' fused kernels cannot do this call of attention or attention_grad, whose queries and
/// values have these types; null if they can.
std::optional<std::string> refuse_fused_attention(const Node& node, const TensorType& q,
                                                  const TensorType& v);

}  // namespace shardrun
