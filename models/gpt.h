// GPT-2's architecture as a plain ONNX file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun {

struct GptOptions {
  int64_t layers = 4, heads = 4, hidden = 128;
  int64_t vocab = 256, context = 64;
  std::optional<int64_t> batch;  // absent: the symbolic dim 'batch'
  double dropout = 0;            // on embeddings, attention weights and both residual branches
  bool weights = true;  // false: each weight is described, so that each rank makes its own shard
  uint64_t seed = 0;
};

/// tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m. Throws invalid_input with the names there
/// are.
GptOptions gpt_preset(const std::string& name);
std::vector<std::string> gpt_presets();

/// Writes input tokens i64 [batch, context], output logits f32 [batch, context, vocab]. Pre-norm
/// blocks, GELU by tanh, learned positions, biases, head tied to the embedding. Weights are drawn
/// as GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 layers)), biases 0, norms 1.
/// Above 1.5 GB the weights go to FILE.data. Returns the number of parameters.
/// Throws invalid_input for sizes that do not fit together or a file that cannot be written.
int64_t write_gpt(const GptOptions& options, const std::string& path);

}  // namespace shardrun
