// bf16 by kernels of f32, for processors that have no instructions for it.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// The kernels of `list`, which get bf16 as f32: operands are widened into the workspace, and what
/// is made there is rounded.
KernelList as_f32(KernelList list);

}  // namespace shardrun::cpu
