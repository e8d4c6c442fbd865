// Vectors of 16 elements: loading, widening, rounding and storing them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace shardrun::cpu {

inline constexpr int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(64)));
using Units = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

template <class V>
V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

/// f32 as the bf16 nearest to it, in the low half: round_to_bf16 of simd.h.
inline Units narrow(Units u) {
  const Units rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  return (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

inline Lanes load_lanes(const float* from) { return load<Lanes>(from); }
inline Lanes load_lanes(const uint16_t* bf16) {
  return std::bit_cast<Lanes>(__builtin_convertvector(load<Halves>(bf16), Units) << 16);
}
inline void store_lanes(float* to, const Lanes& v) { std::memcpy(to, &v, sizeof(v)); }
inline void store_lanes(uint16_t* to, const Lanes& v) {
  const Halves halves = __builtin_convertvector(narrow(std::bit_cast<Units>(v)), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

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
  const Halves two[] = {__builtin_convertvector(narrow(load<Units>(from)), Halves),
                        __builtin_convertvector(narrow(load<Units>(from + kLanes)), Halves)};
  return load<Units>(two);
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

}  // namespace shardrun::cpu
