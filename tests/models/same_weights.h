// A model with its weights stored, and one with the same weights described.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"

namespace shardrun::test {

/// Expects equal parameters, all of which train, bit for bit: their number of elements. What is
/// stored does not depend on the run's seed; what is described was stored with `seed`.
inline int64_t expect_same_weights(const Graph& stored, const ImportReport& of_stored,
                                   const Graph& described, const ImportReport& of_described,
                                   uint64_t seed) {
  const auto &a = of_stored.parameters, &b = of_described.parameters;
  EXPECT_EQ(a.size(), b.size());
  const Interpreter x(stored, seed + 1), y(described, seed);
  int64_t elements = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(a[i].trainable && b[i].trainable) << a[i].name;
    const Tensor &s = x.persistent(a[i].name), &d = y.persistent(a[i].name);
    elements += s.count();
    EXPECT_EQ(s.type(), d.type()) << a[i].name;
    EXPECT_TRUE(s.type() == d.type() &&
                std::memcmp(s.data(), d.data(), static_cast<size_t>(byte_size(s.type()))) == 0)
        << a[i].name;
  }
  return elements;
}

}  // namespace shardrun::test
