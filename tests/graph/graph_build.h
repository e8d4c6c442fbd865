// Building small Graphs by hand and comparing what two Graphs compute.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/reference/interpreter.h"

namespace shardrun::test {

/// Short names for nodes of one floating type. Numbers become constants, as import makes them.
struct Build {
  explicit Build(DType dtype = DType::f64) : dtype(dtype) {}

  Graph g;
  DType dtype;

  ValueId in(const std::string& name, Shape shape) {
    return g.add_input(name, {dtype, std::move(shape)}, Role::batch);
  }
  ValueId ints(const std::string& name, Shape shape) {
    return g.add_input(name, {DType::i64, std::move(shape)}, Role::batch);
  }
  ValueId bools(const std::string& name, Shape shape) {
    return g.add_input(name, {DType::boolean, std::move(shape)}, Role::batch);
  }
  ValueId param(const std::string& name, Shape shape, bool trainable = true) {
    Source source;
    source.kind = Source::Kind::normal;
    source.a = 0.3;
    source.b = 1;
    source.stream = name;
    const ValueId id = g.add_persistent(name, {dtype, std::move(shape)}, Role::parameter, source);
    g.trainable[id] = trainable;
    return id;
  }
  ValueId number(double value) { return array({}, {value}); }
  ValueId array(Shape shape, const std::vector<double>& values) {
    return array(std::move(shape), values, dtype);
  }
  ValueId array(Shape shape, const std::vector<double>& values, DType type) {
    return g.add_constant(
        "c", convert(Tensor::from<double>(std::move(shape), values, DType::f64), type));
  }
  ValueId op(const std::string& name, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return g.add(name, std::move(inputs), std::move(attrs));
  }
  ValueId add(ValueId a, ValueId b) { return op("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op("sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op("mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op("div", {a, b}); }
  ValueId pow(ValueId a, ValueId b) { return op("pow", {a, b}); }
  // A number must be written as one, 2.0: 2 is a ValueId.
  ValueId add(ValueId a, double b) { return add(a, number(b)); }
  ValueId mul(ValueId a, double b) { return mul(a, number(b)); }
  ValueId div(ValueId a, double b) { return div(a, number(b)); }
  ValueId pow(ValueId a, double b) { return pow(a, number(b)); }
  ValueId mul(double a, ValueId b) { return mul(number(a), b); }
  ValueId add(double a, ValueId b) { return add(number(a), b); }
  ValueId sum(ValueId x, std::vector<int64_t> axes, bool keepdims = true) {
    return op("reduce_sum", {x}, {{"axes", std::move(axes)}, {"keepdims", int64_t{keepdims}}});
  }
  ValueId mean(ValueId x, std::vector<int64_t> axes, bool keepdims = true, double less = 0) {
    double count = -less;
    double n = 1;
    for (int64_t axis : axes) n *= static_cast<double>(g.type(x).shape[static_cast<size_t>(axis)]);
    return mul(sum(x, std::move(axes), keepdims), 1 / (n + count));
  }
  ValueId transpose(ValueId x, std::vector<int64_t> perm) {
    return op("transpose", {x}, {{"perm", std::move(perm)}});
  }
  ValueId reshape(ValueId x, Shape shape) {
    return op("reshape", {x}, {{"shape", std::move(shape)}});
  }
  ValueId matmul(ValueId a, ValueId b, const std::string& equation) {
    return op("matmul", {a, b}, {{"equation", equation}});
  }
};

/// Numbers for every batch input and scalar, from its name: normal, true or false, or 0 … 3.
inline NamedTensors feeds_for(const Graph& graph, uint64_t seed = 1) {
  NamedTensors out;
  for (const Value& value : graph.values()) {
    if (value.role != Role::batch && value.role != Role::scalar) continue;
    const RandomStream stream{seed, hash_name(value.name.data(), value.name.size()), 0};
    std::vector<double> numbers(static_cast<size_t>(element_count(value.type.shape)));
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (is_float(value.type.dtype)) numbers[i] = stream.normal(i);
      if (value.type.dtype == DType::boolean) numbers[i] = stream.uniform(i) < 0.7F ? 1 : 0;
      if (value.type.dtype == DType::i64) numbers[i] = std::floor(stream.uniform(i) * 4);
    }
    out[value.name] =
        convert(Tensor::from<double>(value.type.shape, numbers, DType::f64), value.type.dtype);
  }
  return out;
}

/// Of what two spellings compute: constants are written with 8 digits.
inline double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-7 : 3e-5; }

/// Both graphs' outputs, element by element.
inline void expect_same_outputs(const Graph& a, const Graph& b, double tolerance,
                                NamedTensors feeds = {}) {
  if (feeds.empty()) feeds = feeds_for(a);
  const std::vector<Tensor> x = evaluate_graph(a, feeds), y = evaluate_graph(b, feeds);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i].type(), y[i].type());
    for (int64_t k = 0; k < x[i].count(); ++k) {
      ASSERT_NEAR(x[i].at(k), y[i].at(k), tolerance * (1 + std::abs(x[i].at(k))))
          << "output " << i << " element " << k;
    }
  }
}

inline int count_op(const Graph& graph, const std::string& op) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += node.op == op;
  return count;
}

inline const Node* find_op(const Graph& graph, const std::string& op) {
  for (const Node& node : graph.nodes()) {
    if (node.op == op) return &node;
  }
  return nullptr;
}

}  // namespace shardrun::test
