// What the CPU kernels share: splitting work over threads, f32 views of f32 and bf16 memory, and
// exp, log, tanh and erf that the compiler can vectorise.
#pragma once

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
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

/// Calls f(begin, end) on parts of [0, n), one per thread, each of `grain` or more.
template <class F>
void parallel_ranges(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t parts =
      std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (parts <= 1) {
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

/// Elements [offset, offset + n) as floats: in place for f32, else converted into `buffer`.
inline const float* floats(const TensorView& view, int64_t offset, int64_t n, float* buffer) {
  if (view.type.dtype == DType::f32) return view.as<float>() + offset;
  const uint16_t* src = view.as<uint16_t>() + offset;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    buffer[i] = std::bit_cast<float>(static_cast<uint32_t>(src[i]) << 16);
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
inline void put(const TensorView& view, int64_t offset, int64_t n, const float* buffer) {
  if (view.type.dtype == DType::f32) return;
  uint16_t* dst = view.as<uint16_t>() + offset;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = round_to_bf16(buffer[i]);
}

inline float get(const TensorView& view, int64_t i) {
  if (view.type.dtype == DType::f32) return view.as<float>()[i];
  return std::bit_cast<float>(static_cast<uint32_t>(view.as<uint16_t>()[i]) << 16);
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

// ---- vectorisable functions; errors are against the correctly rounded value ----

/// 2^n p for n in [-151, 129], by two factors, so that denormals and infinity come out right.
inline float scale_by_power(float p, int32_t n) {
  const int32_t half = n >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) *
         std::bit_cast<float>((n - half + 127) << 23);
}

/// Within 2 ulp. Cody-Waite reduction and Cephes' polynomial. NaN stays.
inline float exp(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.5f ? 89.5f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const int32_t n = std::bit_cast<int32_t>(shifted) - 0x4b400000;
  const float k = shifted - 12582912.0f;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return scale_by_power(p, n);
}

/// exp(x) - 1 without cancellation near 0.
inline float expm1(float x) {
  float p = 1.0f / 40320;
  p = p * x + 1.0f / 5040;
  p = p * x + 1.0f / 720;
  p = p * x + 1.0f / 120;
  p = p * x + 1.0f / 24;
  p = p * x + 1.0f / 6;
  p = p * x + 0.5f;
  p = p * x * x + x;
  const float e = exp(x) - 1.0f;
  return x > -0.5f && x < 0.5f ? p : e;
}

/// Cephes' logf. log(0) = -inf, NaN below.
inline float log(float x) {
  const float inf = std::numeric_limits<float>::infinity();
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const int32_t bits = std::bit_cast<int32_t>(scaled);
  // Mantissa in [sqrt(1/2), sqrt(2)): the exponent is taken relative to sqrt(1/2).
  const int32_t shifted = bits - 0x3f3504f3;
  const float e = static_cast<float>((shifted >> 23)) - (tiny ? 23.0f : 0.0f);
  const float m = std::bit_cast<float>((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  const float result = m + p + e * 0.693359375f;
  const float special = x == 0.0f ? -inf : x > 0.0f ? x : std::numeric_limits<float>::quiet_NaN();
  return x > 0.0f && x < inf ? result : special;
}

/// log(1 + x) for x in [0, 1], exact for tiny x.
inline float log1p_positive(float x) {
  const float u = 1.0f + x;
  return log(u) + (x - (u - 1.0f)) / u;
}

/// Rational approximation on |x| < 7.9 (as in Eigen), within a few ulp. NaN stays.
inline float tanh(float x) {
  x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
  x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
  const float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

/// Rational approximation on |x| < 4 (as in Eigen), within a few ulp. NaN stays.
inline float erf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  const float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return x * p / q;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float softplus(float x) { return (x > 0 ? x : 0.0f) + log1p_positive(exp(x > 0 ? -x : x)); }

/// The score of what is masked.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Of a row of scores whose softmax is wanted.
struct ExpRow {
  float inverse;  // of the sum of exp(score - top); 0 where everything is masked
  float lse;      // log of the sum of exp(score); kNever there
};
/// Makes a row of scores exp(score - top). `top`: the highest. With everything masked exp(-inf - 0)
/// is 0 throughout, or denormal.
inline ExpRow exp_row(float* row, int64_t n, float top) {
  const float shift = top == kNever ? 0.0f : top;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    row[i] = exp(row[i] - shift);
    sum += row[i];
  }
  if (top == kNever) return {0.0f, kNever};
  return {1.0f / sum, top + std::log(sum)};
}

}  // namespace shardrun::cpu
