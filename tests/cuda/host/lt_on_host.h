// A product in cuBLAS's terms, by plain loops.
#pragma once

#include "kernels/cuda/cublas/lt_product.h"

namespace shardrun::cuda {

/// a(i), b(i): the i-th element of an operand; store(i, row, sum): that of the result, in a row of
/// cuBLAS's.
template <class A, class B, class Store>
void multiply_on_host(const LtShape& s, const A& a, const B& b, const Store& store) {
  for (const LtShape::Start& start : s.starts) {
    for (int64_t n = 0; n < s.batch; ++n) {
      for (int64_t col = 0; col < s.cols; ++col) {
        for (int64_t row = 0; row < s.rows; ++row) {
          double sum = 0;
          for (int64_t k = 0; k < s.depth; ++k) {
            const int64_t in_a = s.transpose_a ? k + row * s.a.ld : row + k * s.a.ld;
            const int64_t in_b = s.transpose_b ? col + k * s.b.ld : k + col * s.b.ld;
            sum += a(start.a + n * s.a.step + in_a) * b(start.b + n * s.b.step + in_b);
          }
          store(start.d + n * s.d.step + row + col * s.d.ld, row, sum);
        }
      }
    }
  }
}

}  // namespace shardrun::cuda
