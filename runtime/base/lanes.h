// Vectors of 16 floats, in f32 or bf16 memory: loading, widening, rounding and storing them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace shardrun {

inline constexpr int64_t kLanes = 16;
/// Has the processor that this is compiled for registers of so many? On others a vector takes two
/// of sixteen, so that a kernel that would hold many holds them in memory.
#ifdef __AVX512F__
inline constexpr bool kLanesFitRegisters = true;
#else
inline constexpr bool kLanesFitRegisters = false;
#endif
using Lanes = float __attribute__((vector_size(64)));
using Units = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

template <class V>
V load_vector(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

/// Lower halves, which GCC 12 widens in five steps unless it is shown how (and warns of an
/// uninitialised variable in the forms without a mask).
inline Units widen(const Halves& v) {
#ifdef __AVX512F__
  return std::bit_cast<Units>(_mm512_maskz_cvtepu16_epi32(0xffff, std::bit_cast<__m256i>(v)));
#else
  return __builtin_convertvector(v, Units);
#endif
}
inline Halves lower_halves(const Units& v) {
#ifdef __AVX512F__
  return std::bit_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, std::bit_cast<__m512i>(v)));
#else
  return __builtin_convertvector(v, Halves);
#endif
}

/// f32 as the bf16 nearest to it, in the low half: what bfloat16(float) does.
inline Units narrow(Units u) {
  const Units rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  return (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

#ifdef __AVX512F__
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
#endif

inline Lanes load_lanes(const float* from) { return load_vector<Lanes>(from); }
inline Lanes load_lanes(const uint16_t* bf16) {
  return std::bit_cast<Lanes>(widen(load_vector<Halves>(bf16)) << 16);
}
/// Of n numbers, at most 16; behind them zeros.
inline Lanes load_lanes(const float* from, int64_t n) {
#ifdef __AVX512F__
  return std::bit_cast<Lanes>(_mm512_maskz_loadu_ps(first_lanes(n), from));
#else
  if (n == kLanes) return load_lanes(from);
  Lanes v{};
  std::memcpy(&v, from, static_cast<size_t>(n) * sizeof(float));
  return v;
#endif
}
inline Lanes load_lanes(const uint16_t* bf16, int64_t n) {
#ifdef __AVX512BW__
  const __m512i halves = _mm512_maskz_loadu_epi16(first_lanes(n), bf16);
  return std::bit_cast<Lanes>(
      widen(std::bit_cast<Halves>(_mm512_maskz_extracti64x4_epi64(0xf, halves, 0))) << 16);
#else
  if (n == kLanes) return load_lanes(bf16);
  Halves v{};
  std::memcpy(&v, bf16, static_cast<size_t>(n) * sizeof(uint16_t));
  return std::bit_cast<Lanes>(widen(v) << 16);
#endif
}
inline void store_lanes(float* to, const Lanes& v) { std::memcpy(to, &v, sizeof(v)); }
inline void store_lanes(uint16_t* to, const Lanes& v) {
  const Halves halves = lower_halves(narrow(std::bit_cast<Units>(v)));
  std::memcpy(to, &halves, sizeof(halves));
}
/// The first n numbers.
inline void store_lanes(float* to, const Lanes& v, int64_t n) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(to, first_lanes(n), std::bit_cast<__m512>(v));
#else
  std::memcpy(to, &v, static_cast<size_t>(n) * sizeof(float));
#endif
}
inline void store_lanes(uint16_t* to, const Lanes& v, int64_t n) {
#ifdef __AVX512F__
  _mm512_mask_cvtepi32_storeu_epi16(to, first_lanes(n),
                                    std::bit_cast<__m512i>(narrow(std::bit_cast<Units>(v))));
#else
  const Halves halves = lower_halves(narrow(std::bit_cast<Units>(v)));
  std::memcpy(to, &halves, static_cast<size_t>(n) * sizeof(uint16_t));
#endif
}

}  // namespace shardrun
