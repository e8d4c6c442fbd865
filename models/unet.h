// U-Nets of residual blocks, as diffusion models have them (Ho et al., 2020), as plain ONNX files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardrun {

struct UNetOptions {
  int64_t width = 32;  // channels of the first level; each further one has twice as many
  int64_t levels = 3;  // each half as high and wide as the one before it
  int64_t blocks = 3;  // of each level on the way down; one more on the way up
  int64_t heads = 4;   // of the attention at the bottom
  int64_t groups = 8;  // of the group norms
  int64_t channels = 3, image = 32;
  std::optional<int64_t> batch;  // absent: the symbolic dim 'batch'
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
  std::string recipe;  // flags of `shardrun train` that the file carries; "": the loss alone
};

/// toast: TOAST's U-Net, 9 blocks down, 12 up, 32 heads between, about 3.6 billion parameters.
/// Throws invalid_input with the names there are.
UNetOptions unet_preset(const std::string& name);

/// Writes input images f32 [batch, channels, image, image] and output predictions of the same
/// shape, to be learnt by mean squared error (what noise was added, say; the network is not told
/// how much).
///
/// A block is x + conv(silu(norm(conv(silu(norm(x)))))), 3x3, with a 1x1 convolution of x where
/// channels change. Between levels a convolution of stride 2 leads down, and a Resize to twice the
/// size with a convolution up. Every result of the way down is concatenated to what a block of the
/// way up reads. At the bottom stand a block, attention between all positions, and a block.
///
/// Convolutions are drawn from N(0, 1 / (inputs * kernel area)), the last of each block and the
/// attention from a hundredth of that; biases 0, norms 1. Returns the number of parameters. Throws
/// invalid_input for sizes that do not fit or a file that cannot be written.
int64_t write_unet(const UNetOptions& options, const std::string& path);

}  // namespace shardrun
