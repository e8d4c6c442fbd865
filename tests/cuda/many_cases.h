// Calls over more tensors than fit into a launch's parameters, with pieces and rests of them,
// empty ones, and both types.
#pragma once

#include "graph/ops/optimizer.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {

/// adamw or sgd of 1500 parameters; every other one gets a copy.
inline Case update_of_many(const std::string& op) {
  constexpr size_t kParameters = 1500;
  Case many;
  many.node.op = op;
  many.node.attrs = op_def(op).samples[0].attrs;
  many.low = 0.05;
  std::vector<double> decays;
  std::vector<int64_t> copies;
  const size_t each = op == "adamw" ? 4 : 3;
  for (size_t p = 0; p < kParameters; ++p) {
    many.in.insert(many.in.end(), each,
                   {DType::f32, {p % 200 == 3 ? 20001 : static_cast<int64_t>(p % 7)}});
    if (p % 3 == 0) many.in[p * each + 1].dtype = DType::bf16;
    if (p % 2 == 0) copies.push_back(static_cast<int64_t>(p));
    decays.push_back(static_cast<double>(p % 4) / 10);
  }
  many.in.insert(many.in.end(), {{DType::f32, {}}, {DType::i64, {}}, {DType::f32, {}}});
  many.node.attrs.set("weight_decays", decays);
  many.node.attrs.set("copy", std::string("bf16"));
  many.node.attrs.set("copies", copies);
  many.out = infer_types(many.node, many.in);
  return many;
}

/// The sum of squares of 3000 gradients.
inline Case squares_of_many() {
  Case c;
  c.node.op = "reduce_sum_squares";
  for (int64_t i = 0; i < 3000; ++i)
    c.in.push_back({i % 3 == 0 ? DType::bf16 : DType::f32, {i % 500 == 1 ? 20001 : i % 7}});
  c.out = infer_types(c.node, c.in);
  return c;
}

}  // namespace shardrun
