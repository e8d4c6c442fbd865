// Wide residual networks as plain ONNX files: torchvision's for large images, and Zagoruyko and
// Komodakis' (2016) for small ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/named.h"

namespace shardrun {

struct WideResNetOptions {
  enum class Family {
    imagenet,  // stem of 7x7 and pool, stages of bottlenecks (or basic blocks: 18 and 34 layers)
    cifar      // stem of 3x3, three stages of pre-activation blocks: layers = 6 n + 4
  };
  Family family = Family::imagenet;
  int64_t layers = 50;
  /// imagenet: channels of the first stage's 3x3 convolutions (torchvision's width_per_group: 64 is
  /// ResNet, 128 is wide_resnet50_2). cifar: the widening factor, 10 in WRN-28-10.
  int64_t width = 128;
  int64_t channels = 3, image = 224, classes = 1000;
  std::optional<int64_t> batch;  // absent: the symbolic dim 'batch'
  double dropout = 0;            // cifar: between a block's convolutions
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
  std::string recipe;  // flags of `shardrun train` that the file carries; "": the loss alone
};

inline constexpr Named<WideResNetOptions::Family> kFamilies[] = {
    {"imagenet", WideResNetOptions::Family::imagenet}, {"cifar", WideResNetOptions::Family::cifar}};

/// wrn-16-4, wrn-28-10, wrn-40-2 … with their paper's recipe, wrn-50-2, wrn-101-2, resnet-18 …, and
/// metadist-1, -2, -4, -8, MetaDist's Table 3. Throws invalid_input with the names there are.
WideResNetOptions wide_resnet_preset(const std::string& name);

/// Writes input images f32 [batch, channels, image, image], output logits f32 [batch, classes].
/// BatchNormalization is in training form, with its running statistics; names are torchvision's.
/// Convolutions are drawn from N(0, 2 / (outputs * kernel area)), scales 1, biases 0, the last
/// layer's uniform. Returns the number of parameters, running statistics not counted. Throws
/// invalid_input for sizes that do not fit or a file that cannot be written.
int64_t write_wide_resnet(const WideResNetOptions& options, const std::string& path);

}  // namespace shardrun
