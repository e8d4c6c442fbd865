// Convolutions of 3 x 3 with a quarter of the multiplications (Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks", 2016): Winograd's F(4 x 4, 3 x 3).
#pragma once

#include "kernels/cpu/images/convolution.h"

namespace shardrun::cpu {

/// The same contract as Convolution's, computed in f32 from tiles of 4 x 4 results (or, for the
/// gradient of the weights, of 4 x 4 of dy): 36 multiplications for 144. Rounding is two to four
/// times a direct convolution's in f32, and far below bf16's. An infinity makes all of a tile NaN.
/// Bits do not depend on the number of threads.
class Winograd {
 public:
  /// Null, with the reason in *why, for other kernels and layouts, and where a direct convolution
  /// is faster.
  static std::shared_ptr<const Convolution> make(const ConvolutionShape& shape, std::string* why);
};

}  // namespace shardrun::cpu
