// Memory delivers most where each thread reads a range of its own, in four streams.
#include "kernels/cpu/products/row_product.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kLanes = 16;       // partial sums of a dot product
constexpr int64_t kRowsOfPart = 64;  // rows of b that are summed by themselves, at least
constexpr int64_t kMostParts = 16;   // of b, whose sums are added in the end
constexpr int64_t kTogether = 4;     // streams of a thread
constexpr int64_t kGrain = 1 << 13;  // elements for one thread to be worth waking

}  // namespace

std::optional<RowProduct> RowProduct::make(const Einsum& e, const LetterSizes& size) {
  const std::string n = common_letters(e.out, e.b, true), k = common_letters(e.a, e.out, false);
  if (e.out.empty() || n != e.out || k != e.a ||
      common_letters(e.b, e.out, false).size() != k.size())
    return std::nullopt;
  const auto sb = strides_of(e.b, size);
  const auto ak = merge_letters(k, strides_of(e.a, size), size), bk = merge_letters(k, sb, size),
             bn = merge_letters(n, sb, size);
  if (!ak || !bk || !bn || (bk->stride != 1 && bn->stride != 1) || ak->stride != 1)
    return std::nullopt;
  RowProduct out;
  out.n_ = bn->size, out.k_ = bk->size;
  out.row_ = bk->stride, out.column_ = bn->stride;
  return out;
}

/// Of the sums over k; the order in which numbers are added must not depend on the threads.
int64_t RowProduct::parts() const {
  return row_ == 1 ? 1 : std::clamp<int64_t>(k_ / kRowsOfPart, 1, kMostParts);
}

int64_t RowProduct::workspace_bytes() const {
  return (parts() - 1) * n_ * static_cast<int64_t>(sizeof(float));
}

void RowProduct::run(const float* a, const float* b, float* c, void* workspace) const {
  if (row_ == 1) {
    parallel_ranges(n_, std::max<int64_t>(1, kGrain / k_),
                    [&](int64_t begin, int64_t end) { dots(a, b, c, begin, end); });
    return;
  }
  const int64_t all = parts();
  auto* const others = static_cast<float*>(workspace);
  const auto sums = [&](int64_t part) { return part == 0 ? c : others + (part - 1) * n_; };
  const int64_t worth = std::max<int64_t>(1, all * kGrain / (n_ * k_));
  parallel_ranges(all, worth, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) add_rows(a, b, sums(p), k_ * p / all, k_ * (p + 1) / all);
  });
  if (all == 1) return;
  parallel_ranges(n_, kGrain / kMostParts, [&](int64_t begin, int64_t end) {
    for (int64_t p = 1; p < all; ++p) {
      const float* part = sums(p);
#pragma omp simd
      for (int64_t n = begin; n < end; ++n) c[n] += part[n];
    }
  });
}

/// c = the sum of a[k] b[k, :] over k in [begin, end).
void RowProduct::add_rows(const float* a, const float* b, float* c, int64_t begin,
                          int64_t end) const {
  std::fill_n(c, n_, 0.0F);
  int64_t k = begin;
  for (; k + kTogether <= end; k += kTogether) {
    const float *b0 = b + k * row_, *b1 = b0 + row_, *b2 = b1 + row_, *b3 = b2 + row_;
    const float a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
#pragma omp simd
    for (int64_t n = 0; n < n_; ++n)
      c[n] = c[n] + a0 * b0[n] + a1 * b1[n] + a2 * b2[n] + a3 * b3[n];
  }
  for (; k < end; ++k) {
#pragma omp simd
    for (int64_t n = 0; n < n_; ++n) c[n] += a[k] * b[k * row_ + n];
  }
}

/// c[n] = a · b[:, n] for n in [begin, end): sums of every sixteenth term, then these from the
/// first on.
void RowProduct::dots(const float* a, const float* b, float* c, int64_t begin, int64_t end) const {
  const auto dot = [&](int64_t n, auto together) {
    constexpr int64_t kColumns = decltype(together)::value;
    const float* column = b + n * column_;
    alignas(64) float sums[kColumns][kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= k_; k += kLanes) {
      for (int64_t j = 0; j < kColumns; ++j) {
#pragma omp simd
        for (int64_t i = 0; i < kLanes; ++i) sums[j][i] += a[k + i] * column[j * column_ + k + i];
      }
    }
    for (int64_t j = 0; j < kColumns; ++j) {
      for (int64_t i = 0; k + i < k_; ++i) sums[j][i] += a[k + i] * column[j * column_ + k + i];
      float sum = 0;
      for (const float part : sums[j]) sum += part;
      c[n + j] = sum;
    }
  };
  int64_t n = begin;
  for (; n + kTogether <= end; n += kTogether) dot(n, std::integral_constant<int64_t, kTogether>());
  for (; n < end; ++n) dot(n, std::integral_constant<int64_t, 1>());
}

}  // namespace shardrun::cpu
