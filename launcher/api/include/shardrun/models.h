// Models that shardrun writes as ONNX files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun {

/// The functions below write a model as ONNX, and return how many parameters it has. They throw
/// Failure(call): sizes that do not fit together, or a file that cannot be written.
struct GptModel {
  /// "", tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, llama-8b, itx, t2b, t7b
  std::string preset;
  // Over the preset's:
  std::optional<int64_t> layers, hidden, heads, vocab, context, batch;
  std::optional<int64_t> kv_heads, head_width, mlp_width;
  std::optional<int64_t> experts, top_k;  // MLPs of a mixture, and those that a token is sent to
  std::optional<double> capacity;         // tokens that an expert takes, times an even split
  std::optional<std::string> norm, mlp,
      positions;                     // layer, rms; gelu, swiglu, geglu; learned, rotary
  std::optional<bool> biases, tied;  // tied: the head is the embedding
  double dropout = 0;
  bool weights = true;  // false: initialisers are described, each rank makes its own shard
  uint64_t seed = 0;
};
int64_t write_gpt(const GptModel& model, const std::string& path);

/// Graph attention; what is not given is the preset's, or a small model's.
struct GatModel {
  std::string preset;         // "", cora, metadist-1, metadist-2, metadist-4, metadist-8
  std::optional<bool> dense;  // an adjacency matrix as input instead of an edge list
  std::optional<int64_t> layers, features, hidden, classes, heads, output_heads, nodes, edges;
  std::optional<double> dropout, attention_dropout, negative_slope;
  std::optional<std::string> recipe;  // flags of `shardrun train` that the file carries
  bool weights = true;
  uint64_t seed = 0;
};
int64_t write_gat(const GatModel& model, const std::string& path);

/// Wide residual networks; what is not given is the preset's, or wide_resnet50_2's.
struct WideResNetModel {
  std::string preset;  // "", wrn-16-4, wrn-28-10, …, wrn-50-2, …, metadist-1, …
  std::optional<std::string> family;  // imagenet, cifar
  std::optional<int64_t> layers, width, channels, image, classes, batch;
  std::optional<double> dropout;
  std::optional<std::string> recipe;
  bool weights = true;
  uint64_t seed = 0;
};
int64_t write_wide_resnet(const WideResNetModel& model, const std::string& path);

/// Graph network simulators; what is not given is the preset's, or a small model's.
struct GnsModel {
  std::string preset;  // "", toast
  std::optional<int64_t> steps, features, edge_features, hidden, latent, mlp_layers, outputs;
  std::optional<int64_t> nodes, edges;
  std::optional<bool> globals;        // also a state of the whole graph
  std::optional<std::string> recipe;  // flags of `shardrun train` that the file carries
  bool weights = true;
  uint64_t seed = 0;
};
int64_t write_gns(const GnsModel& model, const std::string& path);

/// U-Nets of residual blocks; what is not given is the preset's, or a small model's.
struct UNetModel {
  std::string preset;  // "", toast
  std::optional<int64_t> width, levels, blocks, heads, groups, channels, image, batch;
  std::optional<std::string> recipe;
  bool weights = true;
  uint64_t seed = 0;
};
int64_t write_unet(const UNetModel& model, const std::string& path);

}  // namespace shardrun
