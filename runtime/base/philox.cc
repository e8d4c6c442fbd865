// Normal numbers in bulk: logarithm and cosine as polynomials, without a branch, so that the
// compiler does eight at a time. Errors are below 1e-14, far below a float's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/philox_blocks.h"

namespace shardrun {
namespace {

/// log(u) of a normal u > 0: u = m 2^e with m in [sqrt(1/2), sqrt(2)), and
/// log m = 2 atanh((m - 1) / (m + 1)).
inline double log_of(double u) {
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCDu;  // the bits of sqrt(1/2)
  const uint64_t bits = std::bit_cast<uint64_t>(u);
  const auto e = static_cast<int64_t>(bits - kRootHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0), q = s * s;
  double p = 1.0 / 17;
  for (int k = 15; k >= 3; k -= 2) p = p * q + 1.0 / k;
  return static_cast<double>(e) * std::numbers::ln2 + 2.0 * s * (1.0 + q * p);
}

/// cos(2 pi t), t in [0, 1): a sine of at most a quarter turn, by its Taylor series.
inline double cos_of_turns(double t) {
  const double x = 2.0 * std::numbers::pi * (std::abs(t - 0.5) - 0.25), q = x * x;
  double p = 1.0;
  for (int k = 20; k >= 2; k -= 2) p = 1.0 - p * q / static_cast<double>(k * (k + 1));
  return x * p;
}

inline float normal_of(uint32_t first, uint32_t second) {
  const double u1 = (static_cast<double>(first) + 1.0) * 0x1p-32;
  const double u2 = static_cast<double>(second) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * log_of(u1)) * cos_of_turns(u2));
}

}  // namespace

float RandomStream::normal(uint64_t index) const {
  const std::array<uint32_t, 4> words = block(index);
  return normal_of(words[0], words[1]);
}

void RandomStream::normals(uint64_t first, int64_t n, float* out) const {
  alignas(64) uint32_t c[4][kPhiloxBlocks];
  for (int64_t done = 0; done < n; done += kPhiloxBlocks) {
    draw_blocks(
        *this, [&](int64_t b) { return first + static_cast<uint64_t>(done + b); }, c);
    alignas(64) float made[kPhiloxBlocks];
#pragma omp simd
    for (int64_t b = 0; b < kPhiloxBlocks; ++b) made[b] = normal_of(c[0][b], c[1][b]);
    std::copy_n(made, std::min(kPhiloxBlocks, n - done), out + done);
  }
}

}  // namespace shardrun
