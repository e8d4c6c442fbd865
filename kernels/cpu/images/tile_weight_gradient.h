// The gradient of a convolution's weights by the processor's own tiles (AMX).
#pragma once

#include "kernels/cpu/images/convolution.h"

namespace shardrun::cpu {

/// dw[o, (c, tap)] = dy[p, o]' x[p meets tap, c], over all positions p of all images. Null, with
/// the reason in *why: the processor has no tiles; the operands are not bf16 with channels last;
/// there are groups, or few channels. Bits do not depend on the number of threads.
std::shared_ptr<const Convolution> make_tile_weight_gradient(const ConvolutionShape& shape,
                                                             std::string* why);

}  // namespace shardrun::cpu
