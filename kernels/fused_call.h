// runs_fused: whether a backend gains by a step that several became (runtime/program/fusion).
#pragma once

#include "kernels/kernel.h"

namespace shardrun {

/// Is a call with post-ops run by the same implementation as the product or convolution alone would
/// be? Else what would be saved behind it is lost in it.
bool runs_fused(std::span<const KernelList* const> lists, const KernelCall& call);

/// Does one implementation run both calls?
bool runs_alike(std::span<const KernelList* const> lists, const KernelCall& a, const KernelCall& b);

}  // namespace shardrun
