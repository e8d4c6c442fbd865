// Exponentials of a row of scores whose softmax is wanted.
#pragma once

#include "kernels/cpu/functions.h"

namespace shardrun::cpu {

/// The score of what is masked.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

struct ExpRow {
  float sum;      // of exp(score - top)
  float inverse;  // of that; 0 where everything is masked
  float lse;      // log of the sum of exp(score); kNever there
};
/// Makes a row of scores exp(score - top). `top`: the highest, maybe of another row. With
/// everything masked exp(-inf - 0) is 0 throughout, or denormal.
inline ExpRow exp_row(float* row, int64_t n, float top) {
  const float shift = top == kNever ? 0.0f : top;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    row[i] = exp(row[i] - shift);
    sum += row[i];
  }
  if (top == kNever) return {0.0f, 0.0f, kNever};
  return {sum, 1.0f / sum, top + std::log(sum)};
}

}  // namespace shardrun::cpu
