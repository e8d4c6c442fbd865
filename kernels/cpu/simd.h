// What the CPU kernels share: splitting work over threads, and f32 views of f32 and bf16 memory.
#pragma once

#include <omp.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// Elements handled at a time where bf16 passes through a buffer on the stack.
inline constexpr int64_t kBlock = 512;

/// Calls f(first, count) for blocks of [0, n).
template <class F>
void for_blocks(int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += kBlock) f(i, std::min(kBlock, n - i));
}

/// Calls f(begin, end) on parts of [0, n), one per thread, each of `grain` or more. Within such a
/// part there is one thread: a team of one would be allocated.
template <class F>
void parallel_ranges(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t parts =
      std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (parts <= 1 || omp_in_parallel() != 0) {
    f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    const int64_t part = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t begin = n * part / count, end = n * (part + 1) / count;
    if (begin < end) f(begin, end);
  }
}

/// Rows for one thread to be worth waking, when a row has `cols` elements.
inline int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(cols, 1));
}

inline bool is_f32_or_bf16(DType d) { return d == DType::f32 || d == DType::bf16; }

/// An element of f32 or bf16 memory.
inline float as_float(float x) { return x; }
inline float as_float(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

/// Elements [offset, offset + n) as floats: in place for f32, else converted into `buffer`.
inline const float* floats(const TensorView& view, int64_t offset, int64_t n, float* buffer) {
  if (view.type.dtype == DType::f32) return view.as<float>() + offset;
  const uint16_t* src = view.as<uint16_t>() + offset;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) buffer[i] = as_float(src[i]);
  return buffer;
}

/// Where to put n results: in place for f32, else `buffer`, which put() then rounds.
inline float* place(const TensorView& view, int64_t offset, float* buffer) {
  return view.type.dtype == DType::f32 ? view.as<float>() + offset : buffer;
}
inline uint16_t round_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
inline void assign(float& to, float x) { to = x; }
inline void assign(uint16_t& to, float x) { to = round_to_bf16(x); }
inline void put(const TensorView& view, int64_t offset, int64_t n, const float* buffer) {
  if (view.type.dtype == DType::f32) return;
  uint16_t* dst = view.as<uint16_t>() + offset;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = round_to_bf16(buffer[i]);
}

inline float get(const TensorView& view, int64_t i) {
  if (view.type.dtype == DType::f32) return view.as<float>()[i];
  return as_float(view.as<uint16_t>()[i]);
}
inline void set(const TensorView& view, int64_t i, float value) {
  if (view.type.dtype == DType::f32) {
    view.as<float>()[i] = value;
  } else {
    view.as<uint16_t>()[i] = round_to_bf16(value);
  }
}

/// The usual refusal: every floating operand and result must be f32 or bf16.
inline std::optional<std::string> refuse_other_floats(const KernelCall& call) {
  for (const auto& types : {call.in, call.out}) {
    for (const TensorType& t : types) {
      if (is_float(t.dtype) && !is_f32_or_bf16(t.dtype)) {
        return str("computes in f32 and bf16, not ", t.dtype);
      }
    }
  }
  return std::nullopt;
}

}  // namespace shardrun::cpu
