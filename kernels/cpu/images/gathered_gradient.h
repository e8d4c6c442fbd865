// The gradient of a convolution's weights as one product, where positions are few compared with
// channels.
#pragma once

#include "kernels/cpu/images/convolution.h"

namespace shardrun::cpu {

/// dw [o, c taps] = dy' [o, n] x [n, c taps]: what each of the n positions reads of x is gathered
/// into the workspace, in the order in which w has it. oneDNN's own, above all with strides, falls
/// far behind its products there, and makes dw in blocks that are brought into order afterwards.
/// Example: x bf16[8, 14, 14, 1024] with 3 x 3 kernels at stride 2 is [392, 9216].
class GatheredGradient {
 public:
  /// Null, with the reason in *why, for other passes and layouts, and where it would not be faster.
  static std::shared_ptr<const Convolution> make(const ConvolutionShape& shape, std::string* why);
};

}  // namespace shardrun::cpu
