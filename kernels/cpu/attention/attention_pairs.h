// Attention behind a mask that hides most keys, as the adjacency of a graph does: only the pairs of
// query and key that are seen are computed, where products over all keys would throw most away.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// attention or attention_grad in f32 with one boolean mask for all heads: pair by pair where at
/// most one in eight is seen, which only a run can tell, and as `otherwise` does it elsewhere.
KernelImpl by_pairs(const KernelImpl& otherwise);

}  // namespace shardrun::cpu
