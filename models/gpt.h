// GPT-2's architecture, and LLaMA's and Gemma's, as a plain ONNX file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/named.h"

namespace shardrun {

/// The defaults make a GPT-2 (Radford et al., 2019). LLaMA (Touvron et al., 2023) is norm=rms,
/// mlp=swiglu, positions=rotary, biases and tied off; Gemma (Gemma Team, 2024) is mlp=geglu and
/// tied instead.
struct GptOptions {
  int64_t layers = 4, heads = 4, hidden = 128;
  int64_t vocab = 256, context = 64;
  std::optional<int64_t> batch;  // absent: the symbolic dim 'batch'
  std::optional<int64_t>
      kv_heads;  // key and value heads, each for heads / kv_heads queries; absent: heads
  std::optional<int64_t> head_width;  // absent: hidden / heads
  std::optional<int64_t> mlp_width;   // of each of the MLP's branches; absent: 4 hidden
  std::optional<int64_t> experts;     // MLPs of a mixture in each block; absent: one MLP
  int64_t top_k = 2;                  // experts that a token is sent to
  double capacity = 1.25;             // tokens that an expert takes, times an even split
  enum class Norm { layer, rms };
  Norm norm = Norm::layer;
  enum class Mlp { gelu, swiglu, geglu };  // gelu is by tanh; the others are gated
  Mlp mlp = Mlp::gelu;
  enum class Positions { learned, rotary };
  Positions positions = Positions::learned;
  double rotary_base = 10000;
  bool biases = true;   // of linear layers and norms
  bool tied = true;     // the head is the embedding
  double dropout = 0;   // on embeddings, attention weights and both residual branches
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
};

inline constexpr Named<GptOptions::Norm> kGptNorms[] = {{"layer", GptOptions::Norm::layer},
                                                        {"rms", GptOptions::Norm::rms}};
inline constexpr Named<GptOptions::Mlp> kGptMlps[] = {{"gelu", GptOptions::Mlp::gelu},
                                                      {"swiglu", GptOptions::Mlp::swiglu},
                                                      {"geglu", GptOptions::Mlp::geglu}};
inline constexpr Named<GptOptions::Positions> kGptPositions[] = {
    {"learned", GptOptions::Positions::learned}, {"rotary", GptOptions::Positions::rotary}};

/// tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m, llama-8b, itx, t2b, t7b, and metadist-1, -2,
/// -4, -8, MetaDist's Table 2. Throws invalid_input with the names there are.
GptOptions gpt_preset(const std::string& name);

/// Writes input tokens i64 [batch, context], output logits f32 [batch, context, vocab]. Pre-norm
/// blocks. Weights are drawn as GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2
/// layers)), biases 0, norms 1. Above 1.5 GB the weights go to FILE.data. Returns the number of
/// parameters. With `experts` the MLP of each block is a mixture of
/// them, each with weights of its own [experts, in, out] (models/experts.h); a token beyond an
/// expert's capacity, which counts per sample, skips that expert. What opset 20 has no operator for
/// (RMSNormalization, Attention with fewer key heads) is written with opset 23. Throws
/// invalid_input for sizes that do not fit together or a file that cannot be written.
int64_t write_gpt(const GptOptions& options, const std::string& path);

}  // namespace shardrun
