// Random operands for OpDef::samples: what registry-wide tests feed to an op.
#pragma once

#include <random>

#include "base/tensor.h"
#include "graph/op_def.h"

namespace shardrun::test {

/// The sample with every floating type widened to f64, in attributes too.
inline OpDef::Sample in_f64(OpDef::Sample sample) {
  for (TensorType& t : sample.in) {
    if (is_float(t.dtype)) t.dtype = DType::f64;
  }
  for (const char* name : {"to", "dtype", "out_dtype"}) {
    if (sample.attrs.has(name) && is_float(parse_dtype(sample.attrs.s(name)))) {
      sample.attrs.set(name, std::string("f64"));
    }
  }
  return sample;
}

/// Floats uniform in [low, high], indices below their bound, other integers in [1, 3], booleans.
inline std::vector<Tensor> random_operands(const OpDef& def, const Node& node,
                                           const OpDef::Sample& sample, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Tensor> operands;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    const TensorType& type = sample.in[i];
    Tensor wide({is_float(type.dtype) ? DType::f64 : DType::i64, type.shape});
    const std::optional<int64_t> bound =
        def.index_bound != nullptr ? def.index_bound(node, sample.in, i) : std::nullopt;
    for (int64_t k = 0; k < wide.count(); ++k) {
      if (is_float(type.dtype)) {
        wide.as<double>()[k] = std::uniform_real_distribution(sample.low, sample.high)(random);
      } else if (type.dtype == DType::boolean) {
        wide.as<int64_t>()[k] = static_cast<int64_t>(random() % 2);
      } else if (bound.has_value()) {
        wide.as<int64_t>()[k] =
            std::uniform_int_distribution<int64_t>(0, std::max<int64_t>(0, *bound - 1))(random);
      } else {
        wide.as<int64_t>()[k] = std::uniform_int_distribution<int64_t>(1, 3)(random);
      }
    }
    operands.push_back(convert(wide, type.dtype));
  }
  if (def.settle != nullptr) def.settle(node, operands);
  return operands;
}

inline Node sample_node(const OpDef& def, const OpDef::Sample& sample) {
  Node node;
  node.op = def.name;
  node.name = def.name;
  node.attrs = sample.attrs;
  return node;
}

inline std::string describe(const OpDef& def, const OpDef::Sample& sample) {
  std::string text = def.name + "(";
  for (const TensorType& t : sample.in) text += to_string(t) + " ";
  return text + ") {" + to_string(sample.attrs) + "}";
}

}  // namespace shardrun::test
