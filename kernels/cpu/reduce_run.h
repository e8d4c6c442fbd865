// Reducing to one number in an order that does not depend on the thread count.
#pragma once

#include "kernels/cpu/simd.h"

namespace shardrun::cpu {

struct Sum {
  static constexpr double kStart = 0;
  static double join(double a, double b) { return a + b; }
};

/// Elements whose partial result is one f64, whoever makes it; partial results are joined in order.
inline constexpr int64_t kChunk = 16384;
inline int64_t chunks_of(int64_t count) { return (count + kChunk - 1) / kChunk; }
inline int64_t partials_bytes(int64_t count) { return chunks_of(count) * 8; }

/// n contiguous elements from the at-th on; 16 lanes joined in a fixed order.
template <class Op, bool kSquare>
double reduce_run(const TensorView& x, int64_t at, int64_t n) {
  constexpr int64_t kLanes = 16;
  alignas(64) float buffer[kBlock];
  double tail = Op::kStart;
  if (n < kLanes) {
    const float* v = floats(x, at, n, buffer);
    for (int64_t i = 0; i < n; ++i) {
      const double value = static_cast<double>(v[i]);
      tail = Op::join(tail, kSquare ? value * value : value);
    }
    return tail;
  }
  alignas(64) double lane[kLanes];
  std::fill_n(lane, kLanes, Op::kStart);
  const int64_t block =
      x.type.dtype == DType::f32 ? std::max<int64_t>(n, 1) : kBlock;  // as it lies
  for (int64_t done = 0; done < n; done += block) {
    const int64_t count = std::min(block, n - done);
    const float* v = floats(x, at + done, count, buffer);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
      for (int64_t j = 0; j < kLanes; ++j) {
        const double value = static_cast<double>(v[i + j]);
        lane[j] = Op::join(lane[j], kSquare ? value * value : value);
      }
    }
    for (; i < count; ++i) {
      const double value = static_cast<double>(v[i]);
      tail = Op::join(tail, kSquare ? value * value : value);
    }
  }
  for (int64_t j = 0; j < kLanes; ++j) tail = Op::join(tail, lane[j]);
  return tail;
}

}  // namespace shardrun::cpu
