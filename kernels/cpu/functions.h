// Functions that the compiler can make vectors of. Errors are against the correctly rounded value:
// a few ulp, where nothing else is said. NaN stays.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace shardrun::cpu {

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
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  // Mantissa in [sqrt(1/2), sqrt(2)): the exponent is taken relative to sqrt(1/2). That of a number
  // below 0 wraps around.
  const auto shifted = static_cast<int32_t>(bits - 0x3f3504f3u);
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

/// log(1 + x) for x >= 0, exact for tiny x.
inline float log1p_positive(float x) {
  const float u = 1.0f + x;
  return log(u) + (u < 1e8f ? (x - (u - 1.0f)) / u : 0.0f);
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

inline constexpr float kInvSqrt2 = 0.70710678118654752f, kInvSqrt2Pi = 0.39894228040143268f;
inline constexpr float kGeluScale = 0.79788456080286536f, kGeluCube = 0.044715f;
inline float gelu_erf(float x) { return 0.5f * x * (1.0f + erf(x * kInvSqrt2)); }
/// 0.5 (1 + tanh(u)) is sigmoid(2u), which has no cancellation for negative u.
inline float gelu_tanh(float x) {
  return x * sigmoid(2.0f * kGeluScale * (x + kGeluCube * x * x * x));
}
inline float gelu_erf_grad(float x, float dy) {
  return dy * (0.5f * (1.0f + erf(x * kInvSqrt2)) + x * exp(-0.5f * x * x) * kInvSqrt2Pi);
}
inline float gelu_tanh_grad(float x, float dy) {
  const float s = sigmoid(2.0f * kGeluScale * (x + kGeluCube * x * x * x));
  const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCube * x * x);
  return dy * (s + x * s * (1.0f - s) * slope);
}

/// 2 artanh s = log((1 + s) / (1 - s)) for |s| <= 1/3.
template <class T>
inline T log_by_artanh(T s) {
  const T z = s * s;
  T p = T{2} / 15;
  p = p * z + T{2} / 13;
  p = p * z + T{2} / 11;
  p = p * z + T{2} / 9;
  p = p * z + T{2} / 7;
  p = p * z + T{2} / 5;
  p = p * z + T{2} / 3;
  return p * z * s + 2 * s;
}

/// log(1 + exp(x))
inline float softplus(float x) {
  const float e = exp(x > 0.0f ? -x : x);
  return (x > 0.0f ? x : 0.0f) + log_by_artanh(e / (2.0f + e));
}

/// x tanh(softplus(x)), of which the latter is w / (w + 2) for w = e^x (e^x + 2); 1 from 20 on.
inline float mish(float x) {
  const float e = exp(x > 20.0f ? 20.0f : x), w = e * (e + 2.0f);
  return x * (w / (w + 2.0f));
}

/// Within 1 ulp, by doubles; at zeros, infinities and NaN as the library's.
inline float pow(float x, float y) {
  const double huge = 1e300;  // stands for infinity, so that 0 times it is 0
  const float inf = std::numeric_limits<float>::infinity();
  const double a = std::fabs(x);
  const auto bits = std::bit_cast<int64_t>(a);
  // Mantissa in [sqrt(1/2), sqrt(2)): the exponent is taken relative to sqrt(1/2).
  const int64_t shifted = bits - 0x3fe6a09e667f3bcd;
  const auto e = static_cast<double>(static_cast<int32_t>(shifted >> 52));
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  const double log_m = log_by_artanh((m - 1.0) / (m + 1.0));
  const double log_a = a == 0.0 ? -huge : a == inf ? huge : log_m + e * 0.69314718055994530942;
  const double limited = y > 1e30f ? 1e30 : y < -1e30f ? -1e30 : y;
  double t = limited * log_a;
  t = t < -120.0 ? -120.0 : t;
  t = t > 100.0 ? 100.0 : t;
  const double near = t * 1.44269504088896340736 + 6755399441055744.0;  // 1.5 * 2^52: rounds
  const double n = near - 6755399441055744.0, r = t - n * 0.69314718055994530942;
  double q = 1.0 / 362880;
  q = q * r + 1.0 / 40320;
  q = q * r + 1.0 / 5040;
  q = q * r + 1.0 / 720;
  q = q * r + 1.0 / 120;
  q = q * r + 1.0 / 24;
  q = q * r + 1.0 / 6;
  q = q * r + 0.5;
  q = q * r + 1.0;
  q = q * r + 1.0;
  const int64_t power = std::bit_cast<int64_t>(near) - std::bit_cast<int64_t>(6755399441055744.0);
  const auto y_of_a = static_cast<float>(q * std::bit_cast<double>((power + 1023) << 52));
  const float half = 0.5f * y;
  const bool whole = std::floor(y) == y, odd = whole && std::floor(half) != half;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float signed_y = odd ? std::copysign(y_of_a, x) : y_of_a;
  const float result = x < 0.0f && x > -inf && !whole ? nan : signed_y;
  return x == 1.0f || y == 0.0f ? 1.0f : x != x || y != y ? nan : result;
}

/// The remainder with the sign of `a`, exact where |a| < kMostQuotient |b| and both are finite.
inline constexpr float kMostQuotient = 0x1p28f;
inline float fmod(float a, float b) {
  const double x = std::fabs(a), m = std::fabs(b);
  const double r = x - std::trunc(x / m) * m;  // the quotient may have been rounded up
  return std::copysign(static_cast<float>(r < 0.0 ? r + m : r), a);
}

// ---- circular functions: x = q π/2 + r, |r| <= π/4, by three parts of π/2; Cephes' polynomials

/// Up to here the parts lose nothing; beyond, and for NaN, use the library's.
inline constexpr float kMostCircular = 8192.0f;

struct Quadrant {
  float r;
  int32_t q;
};
inline Quadrant quadrant_of(float x) {
  const float shifted = x * 0.63661977236758134f + 12582912.0f;  // rounds to an integer
  const float k = shifted - 12582912.0f;
  return {((x - k * 1.5703125f) - k * 4.837512969970703125e-4f) - k * 7.54978995489188216e-8f,
          std::bit_cast<int32_t>(shifted) - 0x4b400000};
}
inline float sin_near(float r) {
  const float z = r * r;
  return ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
}
inline float cos_near(float r) {
  const float z = r * r;
  const float p = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
  return p * z * z - 0.5f * z + 1.0f;
}
inline float sin(float x) {
  const Quadrant at = quadrant_of(x);
  const float y = (at.q & 1) != 0 ? cos_near(at.r) : sin_near(at.r);
  return (at.q & 2) != 0 ? -y : y;
}
inline float cos(float x) {
  const Quadrant at = quadrant_of(x);
  const float y = (at.q & 1) != 0 ? sin_near(at.r) : cos_near(at.r);
  return ((at.q + 1) & 2) != 0 ? -y : y;
}
inline float tan(float x) {
  const Quadrant at = quadrant_of(x);
  const float z = at.r * at.r;
  float p = 9.38540185543e-3f;
  p = p * z + 3.11992232697e-3f;
  p = p * z + 2.44301354525e-2f;
  p = p * z + 5.34112807005e-2f;
  p = p * z + 1.33387994085e-1f;
  p = p * z + 3.33331568548e-1f;
  const float y = p * z * at.r + at.r;
  return (at.q & 1) != 0 ? -1.0f / y : y;
}

inline constexpr float kPi = 3.14159265358979324f, kHalfPi = kPi / 2, kQuarterPi = kPi / 4;

/// Cephes' atanf.
inline float atan(float x) {
  const float a = std::fabs(x);
  const bool far = a > 2.414213562373095f, near = a > 0.4142135623730950f;
  const float r = far ? -1.0f / a : near ? (a - 1.0f) / (a + 1.0f) : a;
  const float from = far ? kHalfPi : near ? kQuarterPi : 0.0f;
  const float z = r * r;
  float p = 8.05374449538e-2f;
  p = p * z - 1.38776856032e-1f;
  p = p * z + 1.99777106478e-1f;
  p = p * z - 3.33329491539e-1f;
  return std::copysign(from + (p * z * r + r), x);
}

/// asin(r) for r in [0, 1/2] whose square is z. Cephes' asinf.
inline float asin_near(float r, float z) {
  float p = 4.2163199048e-2f;
  p = p * z + 2.4181311049e-2f;
  p = p * z + 4.5470025998e-2f;
  p = p * z + 7.4953002686e-2f;
  p = p * z + 1.6666752422e-1f;
  return p * z * r + r;
}
/// NaN outside of [-1, 1].
inline float asin(float x) {
  const float a = std::fabs(x);
  const bool far = a > 0.5f;
  const float z = far ? 0.5f * (1.0f - a) : a * a, r = far ? std::sqrt(z) : a;
  const float y = asin_near(r, z);
  return std::copysign(far ? kHalfPi - 2.0f * y : y, x);
}
inline float acos(float x) {
  const float a = std::fabs(x);
  const bool far = a > 0.5f;
  const float z = far ? 0.5f * (1.0f - a) : a * a, r = far ? std::sqrt(z) : a;
  const float y = asin_near(r, z), positive = far ? 2.0f * y : kHalfPi - y;
  return x < 0.0f ? kPi - positive : positive;
}

// ---- hyperbolic functions

/// e^a / 2 for a >= 0, which overflows no sooner than its value does.
inline float half_exp(float a) {
  const float root = exp(0.5f * a);
  return 0.5f * root * root;
}
inline float sinh(float x) {
  const float a = std::fabs(x), z = a * a, half = half_exp(a);
  float p = 1.0f / 362880;
  p = p * z + 1.0f / 5040;
  p = p * z + 1.0f / 120;
  p = p * z + 1.0f / 6;
  const float near = p * z * a + a, far = half - 0.25f / half;
  return std::copysign(a < 1.0f ? near : far, x);
}
inline float cosh(float x) {
  const float half = half_exp(std::fabs(x));
  return half + 0.25f / half;
}
inline float asinh(float x) {
  const float a = std::fabs(x), square = a * a;
  const bool far = a > 1e9f;
  const float t = far ? a : a + square / (1.0f + std::sqrt(square + 1.0f));
  return std::copysign(log1p_positive(t) + (far ? 0.69314718055994531f : 0.0f), x);
}
/// NaN below 1.
inline float acosh(float x) {
  const bool far = x > 1e9f;
  const float t = x - 1.0f;
  const float y =
      log1p_positive(far ? x : t + std::sqrt(t * (t + 2.0f))) + (far ? 0.69314718055994531f : 0.0f);
  return x >= 1.0f ? y : std::numeric_limits<float>::quiet_NaN();
}
/// Infinite at ±1, NaN beyond.
inline float atanh(float x) {
  const float inf = std::numeric_limits<float>::infinity();
  const float a = std::fabs(x);
  const float y = 0.5f * log1p_positive(a < 1.0f ? 2.0f * a / (1.0f - a) : 0.0f);
  const float special = a == 1.0f ? inf : std::numeric_limits<float>::quiet_NaN();
  return std::copysign(a < 1.0f ? y : special, x);
}

}  // namespace shardrun::cpu
