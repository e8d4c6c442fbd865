// Attention that a GPU's kernels are held to the reference with, besides that of the registry.
#pragma once

#include "tests/support/kernel_cases.h"

namespace shardrun {

/// As GPT-2 has it, and with lengths that no tile divides and widths of all kinds.
inline std::vector<Case> more_attention(const std::string& op) {
  struct Sizes {
    int64_t batch, heads, queries, keys, width, value_width, causal;
  };
  std::vector<Case> all;
  for (const Sizes& s : {Sizes{2, 3, 256, 256, 64, 64, 1}, Sizes{1, 2, 200, 331, 128, 128, 0},
                         Sizes{2, 2, 33, 80, 64, 64, 1}, Sizes{1, 3, 67, 67, 24, 40, 1}}) {
    const auto type = [&](int64_t rows, int64_t cols) {
      return TensorType{DType::bf16, {s.batch, s.heads, rows, cols}};
    };
    const TensorType q = type(s.queries, s.width), k = type(s.keys, s.width),
                     v = type(s.keys, s.value_width), y = type(s.queries, s.value_width);
    Case c;
    c.node.op = op;
    c.node.attrs = {{"causal", s.causal}, {"has_mask", int64_t{0}}, {"scale", 0.125}};
    c.in = {q, k, v};
    if (op == "attention_grad") c.in = {y, q, k, v, y, {DType::f32, {s.batch, s.heads, s.queries}}};
    c.out = infer_types(c.node, c.in);
    all.push_back(std::move(c));
  }
  return all;
}

/// The calls, at least one, that the kernel accepts of its op's cases, and of these where no sample
/// is one that cuDNN is given.
inline std::vector<Case> accepted_cases(const KernelImpl& impl) {
  std::vector<Case> all = cases_of(op_def(impl.op));
  if (impl.op == "attention" || impl.op == "attention_grad") {
    for (Case& c : more_attention(impl.op)) all.push_back(std::move(c));
  }
  std::erase_if(all, [&](const Case& c) {
    return impl.refuses && impl.refuses({c.node, c.in, c.out}).has_value();
  });
  EXPECT_FALSE(all.empty()) << impl.op << " " << impl.name << " would never be run";
  return all;
}

/// Random, but what a gradient is given of the forward pass: without mask and dropout.
inline std::vector<Tensor> attention_operands(const Case& c, std::mt19937_64& rng) {
  std::vector<Tensor> in = random_operands(c, rng);
  if (c.node.op == "attention_grad") {
    Node forward = c.node;
    forward.op = "attention";
    const std::vector<Tensor> made = run_reference(forward, std::span(in).subspan(1, 3));
    in[4] = made[0], in[5] = made[1];
  }
  return in;
}

}  // namespace shardrun
