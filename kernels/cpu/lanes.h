// Vectors of the CPU kernels: stores past the caches, and transposes of 16 x 16 elements.
#pragma once

#include <utility>

#include "base/lanes.h"

namespace shardrun::cpu {

/// A whole line of memory that is not read soon: past the caches where the processor can and it is
/// aligned. Behind a thread's last one comes end_stream().
inline void stream(void* to, const Units& v) {
#ifdef __AVX512F__
  if (reinterpret_cast<uintptr_t>(to) % sizeof(v) == 0)
    return _mm512_stream_si512(static_cast<__m512i*>(to), std::bit_cast<__m512i>(v));
#endif
  std::memcpy(to, &v, sizeof(v));
}
inline void end_stream() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

/// 32 numbers rounded to bf16, a line of memory.
inline constexpr int64_t kLine = 2 * kLanes;
inline Units narrow_line(const float* from) {
  const Halves two[] = {lower_halves(narrow(load_vector<Units>(from))),
                        lower_halves(narrow(load_vector<Units>(from + kLanes)))};
  return load_vector<Units>(two);
}

/// Swaps the off-diagonal kStep x kStep blocks of each 2 kStep x 2 kStep block.
template <int kStep, int... I>
void swap_blocks(Units* tile, std::integer_sequence<int, I...>) {
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Units a = tile[i], b = tile[i + kStep];
    tile[i] = __builtin_shufflevector(a, b, (I & kStep ? 16 + I - kStep : I)...);
    tile[i + kStep] = __builtin_shufflevector(a, b, (I & kStep ? 16 + I : I + kStep)...);
  }
}

/// 16 x 16.
inline void transpose(Units* tile) {
  using Lane = std::make_integer_sequence<int, kLanes>;
  swap_blocks<8>(tile, Lane{});
  swap_blocks<4>(tile, Lane{});
  swap_blocks<2>(tile, Lane{});
  swap_blocks<1>(tile, Lane{});
}

/// Pairs of the low and of the high halves.
inline Units low_halves(const Units& a, const Units& b) { return (a & 0xffffu) | (b << 16); }
inline Units high_halves(const Units& a, const Units& b) { return (a >> 16) | (b & 0xffff0000u); }

/// 32 x 32 halves: out[i] is column i of rows that begin `row` apart.
inline void transpose_halves(const uint16_t* from, int64_t row, Units* out) {
  Units even[kLanes], odd[kLanes];
  for (int64_t p = 0; p < kLanes; ++p) {
    const uint16_t* at = from + 2 * p * row;
    const Units a = load_vector<Units>(at), b = load_vector<Units>(at + row);
    even[p] = low_halves(a, b);
    odd[p] = high_halves(a, b);
  }
  transpose(even);
  transpose(odd);
  for (int64_t k = 0; k < kLanes; ++k) {
    out[2 * k] = even[k];
    out[2 * k + 1] = odd[k];
  }
}

}  // namespace shardrun::cpu
