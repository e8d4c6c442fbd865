// What a kernel of several fused calls promises, with the reference kernels: it reads all its
// operands, then writes all its results.
#pragma once

#include <cstring>
#include <set>
#include <span>

#include "kernels/element_chain.h"

namespace shardrun::test {

inline void run_chain(const ElementChain& chain, std::span<const TensorView> in,
                      std::span<const TensorView> out) {
  std::vector<Tensor> values(chain.values.size());
  for (size_t i = 0; i < chain.reads.size(); ++i) {
    Tensor& value = values[static_cast<size_t>(chain.reads[i])];
    value = Tensor(in[i].type);
    std::memcpy(value.data(), in[i].data, static_cast<size_t>(byte_size(in[i].type)));
  }
  for (const ElementChain::Call& call : chain.calls) {
    std::vector<Tensor> operands;
    for (int place : call.in) operands.push_back(values[static_cast<size_t>(place)]);
    values[static_cast<size_t>(call.out)] = run_reference(call.node, operands)[0];
  }
  for (size_t i = 0; i < chain.writes.size(); ++i) {
    std::memcpy(out[i].data, values[static_cast<size_t>(chain.writes[i])].data(),
                static_cast<size_t>(byte_size(out[i].type)));
  }
}

/// Some ops that work element by element.
inline bool fuses(const std::string& op) {
  static const std::set<std::string> some = {
      "add",  "sub",  "mul",       "div",  "neg",     "exp",   "sqrt", "max",
      "gelu", "tanh", "gelu_grad", "cast", "greater", "where", "relu", "dropout"};
  return some.count(op) > 0;
}

}  // namespace shardrun::test
