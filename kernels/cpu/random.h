// Runs of Philox numbers, several blocks at a time so that the compiler can vectorise them.
#pragma once

#include "base/philox.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {

/// Philox blocks made at a time.
inline constexpr int64_t kPhiloxBlocks = 16;

/// Words c[w][b] of the blocks whose numbers are given.
template <class BlockNumber>
void draw_blocks(const RandomStream& stream, BlockNumber&& number,
                 uint32_t (&c)[4][kPhiloxBlocks]) {
  for (int64_t b = 0; b < kPhiloxBlocks; ++b) {
    const uint64_t block = number(b);
    c[0][b] = static_cast<uint32_t>(block), c[1][b] = static_cast<uint32_t>(block >> 32);
    c[2][b] = static_cast<uint32_t>(stream.step), c[3][b] = static_cast<uint32_t>(stream.stream);
  }
  uint32_t r0 = static_cast<uint32_t>(stream.seed ^ (stream.stream >> 32));
  uint32_t r1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t b = 0; b < kPhiloxBlocks; ++b) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c[0][b], p1 = uint64_t{0xCD9E8D57} * c[2][b];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1][b] ^ r0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3][b] ^ r1;
      c[0][b] = n0, c[1][b] = static_cast<uint32_t>(p1), c[2][b] = n2,
      c[3][b] = static_cast<uint32_t>(p0);
    }
    r0 += 0x9E3779B9, r1 += 0xBB67AE85;
  }
}

/// uniform = (bits >> 8) * 2^-24 >= p exactly where bits >> 8 >= this.
inline uint32_t keep_threshold(double p) {
  return static_cast<uint32_t>(std::ceil(p * 16777216.0));
}

/// keep[i] = factor if stream.uniform(position + i) >= p, else 0; the same numbers as one by one.
inline void draw_keep(const RandomStream& stream, uint64_t position, int64_t n, double p,
                      float factor, float* keep) {
  const uint32_t threshold = keep_threshold(p);
  alignas(64) uint32_t c[4][kPhiloxBlocks];
  for (int64_t done = 0; done < n;) {
    const uint64_t first = (position + static_cast<uint64_t>(done)) / 4;
    draw_blocks(
        stream, [&](int64_t b) { return first + static_cast<uint64_t>(b); }, c);
    const int64_t skip = static_cast<int64_t>((position + static_cast<uint64_t>(done)) % 4);
    const int64_t count = std::min(n - done, 4 * kPhiloxBlocks - skip);
    alignas(64) uint32_t words[4 * kPhiloxBlocks];  // in the order of the elements
    for (int64_t b = 0; b < kPhiloxBlocks; ++b) {
      for (int64_t w = 0; w < 4; ++w) words[4 * b + w] = c[w][b];
    }
    const uint32_t* word = words + skip;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      keep[done + i] = (word[i] >> 8) >= threshold ? factor : 0.0f;
    done += count;
  }
}

/// The same for elements that do not lie side by side.
inline void draw_keep_at(const RandomStream& stream, const uint64_t* positions, int64_t n, double p,
                         float factor, float* keep) {
  const uint32_t threshold = keep_threshold(p);
  alignas(64) uint32_t c[4][kPhiloxBlocks];
  for (int64_t done = 0; done < n; done += kPhiloxBlocks) {
    const int64_t count = std::min(n - done, kPhiloxBlocks);
    const uint64_t* at = positions + done;
    draw_blocks(
        stream, [&](int64_t b) { return at[std::min(b, count - 1)] / 4; }, c);
    for (int64_t i = 0; i < count; ++i)
      keep[done + i] = (c[at[i] % 4][i] >> 8) >= threshold ? factor : 0.0f;
  }
}

}  // namespace shardrun::cpu
