// Several Philox blocks at a time: for loops that are compiled with -fopenmp-simd.
#pragma once

#include "base/philox.h"

namespace shardrun {

/// Blocks made at a time, so that the compiler can vectorise them.
inline constexpr int64_t kPhiloxBlocks = 16;

/// Words c[w][b] of the blocks whose numbers are given: stream.block(number(b))[w].
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

}  // namespace shardrun
