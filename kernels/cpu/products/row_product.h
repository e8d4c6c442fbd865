// One row by a matrix: what a token at a time makes of a layer's weights, as fast as memory
// delivers them.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/einsum_product.h"

namespace shardrun::cpu {

/// c [n] = a [k] b [k, n], f32. Every number is summed in an order that k alone decides: the same
/// bits with any number of threads, and on ranks which hold some columns as on one that holds all.
class RowProduct {
 public:
  /// `e` without letters of size 1. nullopt: it is no row by a matrix whose rows or columns are
  /// dense. How many columns there are does not matter: ranks that hold fewer do the same.
  static std::optional<RowProduct> make(const Einsum& e, const LetterSizes& size);
  int64_t workspace_bytes() const;
  void run(const float* a, const float* b, float* c, void* workspace) const;

 private:
  void add_rows(const float* a, const float* b, float* c, int64_t begin, int64_t end) const;
  void dots(const float* a, const float* b, float* c, int64_t begin, int64_t end) const;
  int64_t parts() const;

  int64_t n_ = 0, k_ = 0;
  int64_t row_ = 0, column_ = 0;  // strides of b along k and n, one of them 1
};

}  // namespace shardrun::cpu
