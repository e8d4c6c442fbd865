// Several Philox blocks at a time, in vectors of the processor's width.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstring>

#include "base/philox.h"

namespace shardrun {

/// Blocks, and words of consecutive blocks, made at a time.
inline constexpr int64_t kPhiloxBlocks = 16, kPhiloxWords = 128;

namespace philox {

// A word of a block in the low half of each lane, so that products of words, which fill lanes, need
// no moves; what is in the high halves does not matter. product: of low halves. interleave: the
// lanes of two vectors in turn, in two vectors.
#if defined(__AVX512F__)
using Wide [[gnu::vector_size(64)]] = uint64_t;
inline Wide product(Wide a, Wide b) {
  // The unmasked one has an undefined operand, of which GCC 12 warns.
  return reinterpret_cast<Wide>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
inline void interleave(Wide a, Wide b, Wide (&to)[2]) {
  to[0] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  to[1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#elif defined(__AVX2__)
using Wide [[gnu::vector_size(32)]] = uint64_t;
inline Wide product(Wide a, Wide b) {
  return reinterpret_cast<Wide>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
inline void interleave(Wide a, Wide b, Wide (&to)[2]) {
  to[0] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  to[1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#else
using Wide [[gnu::vector_size(16)]] = uint64_t;
inline Wide product(Wide a, Wide b) {
#if defined(__SSE2__)
  return reinterpret_cast<Wide>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
#endif
}
inline void interleave(Wide a, Wide b, Wide (&to)[2]) {
  to[0] = __builtin_shufflevector(a, b, 0, 2);
  to[1] = __builtin_shufflevector(a, b, 1, 3);
}
#endif
inline constexpr int64_t kWide = sizeof(Wide) / sizeof(uint64_t);

inline Wide all(uint32_t word) { return Wide{} + word; }

/// `kCount` blocks. word[w][v]: word w of block v * kWide + lane, as a number of the vector.
template <int64_t kCount>
struct Blocks {
  static constexpr int64_t kVectors = kCount / kWide;
  Wide word[4][kVectors];

  template <class BlockNumber>
  Blocks(const RandomStream& stream, const BlockNumber& number) {
    uint64_t numbers[kCount];
    for (int64_t b = 0; b < kCount; ++b) numbers[b] = number(b);
    for (int64_t v = 0; v < kVectors; ++v) {
      std::memcpy(&word[0][v], numbers + v * kWide, sizeof(Wide));
      word[1][v] = word[0][v] >> 32;
      word[2][v] = all(static_cast<uint32_t>(stream.step));
      word[3][v] = all(static_cast<uint32_t>(stream.stream));
    }
    uint32_t r0 = static_cast<uint32_t>(stream.seed ^ (stream.stream >> 32));
    uint32_t r1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        const Wide p0 = product(word[0][v], all(0xD2511F53));
        const Wide p1 = product(word[2][v], all(0xCD9E8D57));
        word[0][v] = (p1 >> 32) ^ word[1][v] ^ all(r0), word[1][v] = p1;
        word[2][v] = (p0 >> 32) ^ word[3][v] ^ all(r1), word[3][v] = p0;
      }
      r0 += 0x9E3779B9, r1 += 0xBB67AE85;
    }
  }
};

}  // namespace philox

/// Words c[w][b] of the blocks whose numbers are given: stream.block(number(b))[w].
template <class BlockNumber>
void draw_blocks(const RandomStream& stream, const BlockNumber& number,
                 uint32_t (&c)[4][kPhiloxBlocks]) {
  const philox::Blocks<kPhiloxBlocks> blocks(stream, number);
  for (int64_t w = 0; w < 4; ++w) {
    uint64_t lanes[kPhiloxBlocks];
    std::memcpy(lanes, blocks.word[w], sizeof lanes);
    for (int64_t b = 0; b < kPhiloxBlocks; ++b) c[w][b] = static_cast<uint32_t>(lanes[b]);
  }
}

/// words[i] = stream.bits(4 * first + i): of the blocks from `first` on.
inline void draw_words(const RandomStream& stream, uint64_t first,
                       uint32_t (&words)[kPhiloxWords]) {
  using philox::Wide;
  const philox::Blocks<kPhiloxWords / 4> blocks(
      stream, [&](int64_t b) { return first + static_cast<uint64_t>(b); });
  for (int64_t v = 0; v < blocks.kVectors; ++v) {
    const auto& w = blocks.word;
    const Wide front = (w[0][v] & 0xFFFFFFFF) | w[1][v] << 32;
    const Wide back = (w[2][v] & 0xFFFFFFFF) | w[3][v] << 32;
    Wide made[2];
    philox::interleave(front, back, made);
    std::memcpy(words + 4 * v * philox::kWide, made, sizeof made);
  }
}

}  // namespace shardrun
