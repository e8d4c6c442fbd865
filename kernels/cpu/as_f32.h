// bf16 by kernels of f32, for processors that have no instructions for it.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// Does oneDNN multiply bf16 by the processor's own instructions (AVX-512 BF16 or AMX)? Elsewhere
/// its products of bf16 are several times slower than those of f32, or are left to the reference
/// kernels.
bool multiplies_bf16();

/// The kernels of `list`, which get bf16 as f32: operands are widened into the workspace, and what
/// is made there is rounded.
KernelList as_f32(KernelList list);

}  // namespace shardrun::cpu
