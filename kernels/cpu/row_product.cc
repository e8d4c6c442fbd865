#include "kernels/cpu/row_product.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

namespace shardrun::cpu {
namespace {

constexpr int64_t kLeast = 1 << 14;  // elements of b
constexpr int64_t kColumns = 2048;   // of c at a time, which the innermost cache holds
constexpr int64_t kLanes = 16;       // partial sums of a dot product

}  // namespace

std::optional<RowProduct> RowProduct::make(const Einsum& e, const LetterSizes& size) {
  const std::string n = common_letters(e.out, e.b, true), k = common_letters(e.a, e.out, false);
  if (e.out.empty() || n != e.out || k != e.a ||
      common_letters(e.b, e.out, false).size() != k.size())
    return std::nullopt;
  const auto sb = strides_of(e.b, size);
  const auto ak = merge_letters(k, strides_of(e.a, size), size), bk = merge_letters(k, sb, size),
             bn = merge_letters(n, sb, size);
  if (!ak || !bk || !bn || (bk->stride != 1 && bn->stride != 1) || ak->stride != 1 ||
      bk->size * bn->size < kLeast)
    return std::nullopt;
  RowProduct out;
  out.n_ = bn->size, out.k_ = bk->size;
  out.row_ = bk->stride, out.column_ = bn->stride;
  return out;
}

void RowProduct::run(const float* a, const float* b, float* c) const {
  const bool dots = row_ == 1;
  const int64_t block =
      dots ? 64 : std::min(kColumns, (n_ + omp_get_max_threads() - 1) / omp_get_max_threads());
  const int64_t step = std::max<int64_t>(kLanes, (block + kLanes - 1) / kLanes * kLanes);
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < n_; first += step) {
    const int64_t end = std::min(n_, first + step);
    if (dots) {
      run_dots(a, b, c, first, end);
    } else {
      run_columns(a, b, c, first, end);
    }
  }
}

/// c += a[k] b[k, :], four rows of b at a time.
void RowProduct::run_columns(const float* a, const float* b, float* c, int64_t first,
                             int64_t end) const {
  std::fill(c + first, c + end, 0.0F);
  int64_t k = 0;
  for (; k + 4 <= k_; k += 4) {
    const float *b0 = b + k * row_, *b1 = b0 + row_, *b2 = b1 + row_, *b3 = b2 + row_;
    const float a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
#pragma omp simd
    for (int64_t n = first; n < end; ++n)
      c[n] =
          std::fma(a3, b3[n], std::fma(a2, b2[n], std::fma(a1, b1[n], std::fma(a0, b0[n], c[n]))));
  }
  for (; k < k_; ++k) {
#pragma omp simd
    for (int64_t n = first; n < end; ++n) c[n] = std::fma(a[k], b[k * row_ + n], c[n]);
  }
}

/// Sums of every sixteenth term, then these from the first on.
void RowProduct::run_dots(const float* a, const float* b, float* c, int64_t first,
                          int64_t end) const {
  for (int64_t n = first; n < end; ++n) {
    const float* row = b + n * column_;
    alignas(64) float sums[2 * kLanes] = {};
    int64_t k = 0;
    for (; k + 2 * kLanes <= k_; k += 2 * kLanes) {
#pragma omp simd
      for (int64_t i = 0; i < 2 * kLanes; ++i) sums[i] = std::fma(a[k + i], row[k + i], sums[i]);
    }
    for (int64_t i = 0; k < k_; ++k, ++i) sums[i] = std::fma(a[k], row[k], sums[i]);
    float sum = 0;
    for (const float part : sums) sum += part;
    c[n] = sum;
  }
}

}  // namespace shardrun::cpu
