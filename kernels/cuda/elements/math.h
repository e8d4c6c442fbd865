// What one element goes through: functions of numbers, and how elements of each type become numbers
// and back. Plain C++, for three readers: this compiler, nvcc, and NVRTC, which is given this text
// in front of the code that is generated (kernels/cuda/elements/element_source.h).
#pragma once

#ifdef __CUDACC_RTC__
#define SR_HOST_DEVICE  // for NVRTC everything is the device's
#else
#include <math.h>

#include "device/cuda/index.h"
#endif

namespace shardrun::cuda::math {

using Int = long long;  // NOLINT: 64 bits for all three readers, which have no <cstdint> in common
using Word = unsigned int;
using Wide = unsigned long long;  // NOLINT

// ---- elements and numbers ----

struct Bf16 {
  unsigned short bits;  // NOLINT
};

SR_HOST_DEVICE inline float float_of(Word bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
#endif
}

SR_HOST_DEVICE inline Word bits_of(float f) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(f);
#else
  Word bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  return bits;
#endif
}

/// An attribute, of which every bit counts.
SR_HOST_DEVICE inline double double_of(Wide bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<Int>(bits));
#else
  double d;
  __builtin_memcpy(&d, &bits, sizeof d);
  return d;
#endif
}

SR_HOST_DEVICE inline float number(Bf16 x) { return float_of(Word{x.bits} << 16); }
SR_HOST_DEVICE inline float number(float x) { return x; }
SR_HOST_DEVICE inline double number(double x) { return x; }
SR_HOST_DEVICE inline bool number(bool x) { return x; }
SR_HOST_DEVICE inline Int number(Int x) { return x; }
SR_HOST_DEVICE inline Int number(int x) { return x; }
SR_HOST_DEVICE inline Int number(signed char x) { return x; }
SR_HOST_DEVICE inline Int number(unsigned char x) { return x; }

/// The element of type T nearest to a number: floats round to nearest even, floats become integers
/// by dropping what is behind the point, integers wrap, anything but 0 is true.
template <class T>
struct Element {
  template <class X>
  SR_HOST_DEVICE static T of(X x) {
    return static_cast<T>(x);
  }
};
template <>
struct Element<bool> {
  template <class X>
  SR_HOST_DEVICE static bool of(X x) {
    return x != X(0);
  }
};
template <>
struct Element<Bf16> {
  template <class X>
  SR_HOST_DEVICE static Bf16 of(X x) {
    Bf16 out;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(static_cast<float>(x)));
#else
    const Word u = bits_of(static_cast<float>(x));
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const Word bits = nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    out.bits = static_cast<unsigned short>(bits);  // NOLINT
#endif
    return out;
  }
};

/// V elements that lie side by side, moved at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Many {
  T at[V];
};

template <int V, class T>
SR_HOST_DEVICE Many<T, V> load(const T* from) {
  return *reinterpret_cast<const Many<T, V>*>(from);
}
template <int V, class T>
SR_HOST_DEVICE void store(T* to, const Many<T, V>& elements) {
  *reinterpret_cast<Many<T, V>*>(to) = elements;
}

// ---- functions of floats; T is float or double ----

template <class T>
SR_HOST_DEVICE T neg(T x) {
  return -x;
}
template <class T>
SR_HOST_DEVICE T abs(T x) {
  return ::fabs(x);
}
template <class T>
SR_HOST_DEVICE T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;  // of NaN: NaN
}
template <class T>
SR_HOST_DEVICE T floor(T x) {
  return ::floor(x);
}
template <class T>
SR_HOST_DEVICE T ceil(T x) {
  return ::ceil(x);
}
template <class T>
SR_HOST_DEVICE T round(T x) {  // half to even
  return ::rint(x);
}
template <class T>
SR_HOST_DEVICE T exp(T x) {
  return ::exp(x);
}
template <class T>
SR_HOST_DEVICE T log(T x) {
  return ::log(x);
}
template <class T>
SR_HOST_DEVICE T sqrt(T x) {
  return ::sqrt(x);
}
template <class T>
SR_HOST_DEVICE T reciprocal(T x) {
  return T(1) / x;
}
template <class T>
SR_HOST_DEVICE T sin(T x) {
  return ::sin(x);
}
template <class T>
SR_HOST_DEVICE T cos(T x) {
  return ::cos(x);
}
template <class T>
SR_HOST_DEVICE T tan(T x) {
  return ::tan(x);
}
template <class T>
SR_HOST_DEVICE T asin(T x) {
  return ::asin(x);
}
template <class T>
SR_HOST_DEVICE T acos(T x) {
  return ::acos(x);
}
template <class T>
SR_HOST_DEVICE T atan(T x) {
  return ::atan(x);
}
template <class T>
SR_HOST_DEVICE T sinh(T x) {
  return ::sinh(x);
}
template <class T>
SR_HOST_DEVICE T cosh(T x) {
  return ::cosh(x);
}
template <class T>
SR_HOST_DEVICE T tanh(T x) {
  return ::tanh(x);
}
template <class T>
SR_HOST_DEVICE T asinh(T x) {
  return ::asinh(x);
}
template <class T>
SR_HOST_DEVICE T acosh(T x) {
  return ::acosh(x);
}
template <class T>
SR_HOST_DEVICE T atanh(T x) {
  return ::atanh(x);
}
template <class T>
SR_HOST_DEVICE T erf(T x) {
  return ::erf(x);
}
template <class T>
SR_HOST_DEVICE T sigmoid(T x) {
  return T(1) / (T(1) + ::exp(-x));
}
template <class T>
SR_HOST_DEVICE T softplus(T x) {
  return x > T(0) ? x + ::log1p(::exp(-x)) : ::log1p(::exp(x));
}
template <class T>
SR_HOST_DEVICE T softsign(T x) {
  return x / (T(1) + ::fabs(x));
}
template <class T>
SR_HOST_DEVICE T silu(T x) {
  return x * sigmoid(x);
}
template <class T>
SR_HOST_DEVICE T mish(T x) {
  return x * ::tanh(softplus(x));
}
template <class T>
SR_HOST_DEVICE T relu(T x) {
  return x < T(0) ? T(0) : x;
}
template <class T>
SR_HOST_DEVICE T leaky_relu(T x, T alpha) {
  return x < T(0) ? alpha * x : x;
}
template <class T>
SR_HOST_DEVICE T elu(T x, T alpha) {
  return x < T(0) ? alpha * ::expm1(x) : x;
}
template <class T>
SR_HOST_DEVICE T selu(T x, T alpha, T gamma) {
  return gamma * elu(x, alpha);
}
template <class T>
SR_HOST_DEVICE T celu(T x, T alpha) {
  return x < T(0) ? alpha * ::expm1(x / alpha) : x;
}
template <class T>
SR_HOST_DEVICE T clamp01(T x) {
  return x < T(0) ? T(0) : x > T(1) ? T(1) : x;
}
template <class T>
SR_HOST_DEVICE T hard_sigmoid(T x, T alpha, T beta) {
  return clamp01(alpha * x + beta);
}
template <class T>
SR_HOST_DEVICE T hard_swish(T x) {
  return x * clamp01(x / T(6) + T(0.5));
}
template <class T>
SR_HOST_DEVICE T thresholded_relu(T x, T alpha) {
  return x > alpha ? x : T(0);
}
template <class T>
SR_HOST_DEVICE T clip(T x, T low, T high) {  // NaN stays; the upper bound wins
  return x < low ? (low < high ? low : high) : x > high ? high : x;
}
template <class T>
SR_HOST_DEVICE bool isnan(T x) {
  return x != x;
}
template <class T>
SR_HOST_DEVICE bool isinf(T x, T negative, T positive) {
  const T magnitude = x < T(0) ? -x : x;
  return magnitude == magnitude && magnitude - magnitude != T(0) &&
         (x < T(0) ? negative : positive) != T(0);
}

template <class T>
SR_HOST_DEVICE T gelu_erf(T x) {
  return T(0.5) * x * (T(1) + ::erf(x * T(0.70710678118654752)));
}
// 0.5 (1 + tanh(u)) is sigmoid(2u), which has no cancellation for negative u.
template <class T>
SR_HOST_DEVICE T gelu_tanh(T x) {
  return x * sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
}
template <class T>
SR_HOST_DEVICE T gelu_erf_grad(T x, T dy) {
  return dy * (T(0.5) * (T(1) + ::erf(x * T(0.70710678118654752))) +
               x * ::exp(T(-0.5) * x * x) * T(0.39894228040143268));
}
template <class T>
SR_HOST_DEVICE T gelu_tanh_grad(T x, T dy) {
  const T s = sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
  const T slope = T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * x * x);
  return dy * (s + x * s * (T(1) - s) * slope);
}

template <class T>
SR_HOST_DEVICE T add(T a, T b) {
  return a + b;
}
template <class T>
SR_HOST_DEVICE T sub(T a, T b) {
  return a - b;
}
template <class T>
SR_HOST_DEVICE T mul(T a, T b) {
  return a * b;
}
template <class T>
SR_HOST_DEVICE T div(T a, T b) {
  return a / b;
}
template <class T>
SR_HOST_DEVICE T pow(T a, T b) {
  return b == T(2) ? a * a : ::pow(a, b);
}
template <class T>
SR_HOST_DEVICE T max(T a, T b) {  // NaN propagates
  return a != a || a > b ? a : b;
}
template <class T>
SR_HOST_DEVICE T min(T a, T b) {
  return a != a || a < b ? a : b;
}
template <class T>
SR_HOST_DEVICE T mod(T a, T b, T fmod) {  // fmod: the dividend's sign, else the divisor's
  const T r = ::fmod(a, b);
  return fmod == T(0) && r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}

// ---- functions of integers, where they are not those of floats ----

SR_HOST_DEVICE inline Wide wide(Int x) { return static_cast<Wide>(x); }
SR_HOST_DEVICE inline Int neg(Int x) { return static_cast<Int>(-wide(x)); }
SR_HOST_DEVICE inline Int abs(Int x) { return x < 0 ? neg(x) : x; }
SR_HOST_DEVICE inline Int add(Int a, Int b) { return static_cast<Int>(wide(a) + wide(b)); }
SR_HOST_DEVICE inline Int sub(Int a, Int b) { return static_cast<Int>(wide(a) - wide(b)); }
SR_HOST_DEVICE inline Int mul(Int a, Int b) { return static_cast<Int>(wide(a) * wide(b)); }
SR_HOST_DEVICE inline Int div(Int a, Int b) {  // truncates; x / 0 = 0
  return b == 0 ? 0 : b == -1 ? neg(a) : a / b;
}
SR_HOST_DEVICE inline Int mod(Int a, Int b, Int fmod) {
  if (b == 0 || b == -1) return 0;
  const Int r = a % b;
  return fmod == 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
SR_HOST_DEVICE inline Int pow(Int a, Int b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  Wide result = 1, base = wide(a);
  for (; b > 0; b >>= 1, base *= base) {
    if ((b & 1) != 0) result *= base;
  }
  return static_cast<Int>(result);
}
/// Bounds that are infinite or not whole numbers, as the reference takes them.
SR_HOST_DEVICE inline Int clip(Int x, double low, double high) {
  if (static_cast<double>(x) < low) x = static_cast<Int>(low);
  if (static_cast<double>(x) > high) x = static_cast<Int>(high);
  return x;
}

// ---- comparisons and logic, of any numbers ----

template <class T>
SR_HOST_DEVICE bool equal(T a, T b) {
  return a == b;
}
template <class T>
SR_HOST_DEVICE bool less(T a, T b) {
  return a < b;
}
template <class T>
SR_HOST_DEVICE bool less_equal(T a, T b) {
  return a <= b;
}
template <class T>
SR_HOST_DEVICE bool greater(T a, T b) {
  return a > b;
}
template <class T>
SR_HOST_DEVICE bool greater_equal(T a, T b) {
  return a >= b;
}
SR_HOST_DEVICE inline bool logical_not(bool a) { return !a; }
SR_HOST_DEVICE inline bool logical_and(bool a, bool b) { return a && b; }
SR_HOST_DEVICE inline bool logical_or(bool a, bool b) { return a || b; }
SR_HOST_DEVICE inline bool logical_xor(bool a, bool b) { return a != b; }
template <class T>
SR_HOST_DEVICE T where(bool condition, T a, T b) {
  return condition ? a : b;
}
template <class T>
SR_HOST_DEVICE T identity(T x) {
  return x;
}

// ---- random numbers: base/philox.h's RandomStream, bit for bit ----

struct Block {
  Word word[4];
};

SR_HOST_DEVICE inline Block philox(Wide block, Wide seed, Wide stream, Wide step) {
  Word c0 = static_cast<Word>(block), c1 = static_cast<Word>(block >> 32);
  Word c2 = static_cast<Word>(step), c3 = static_cast<Word>(stream);
  Word k0 = static_cast<Word>(seed ^ (stream >> 32)), k1 = static_cast<Word>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = Wide{0xD2511F53u} * c0, p1 = Wide{0xCD9E8D57u} * c2;
    const Word n0 = static_cast<Word>(p1 >> 32) ^ c1 ^ k0;
    const Word n2 = static_cast<Word>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = static_cast<Word>(p1), c2 = n2, c3 = static_cast<Word>(p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The random bits of V elements from `position` on, `stride` apart. Four neighbours share a block;
/// `whole`: all positions come in such fours.
template <int V>
struct Draw {
  Word bits[V];

  SR_HOST_DEVICE Draw(Wide position, Wide stride, Wide seed, Wide stream, Wide step,
                      bool whole = false) {
    if (whole && V % 4 == 0) {
      for (int k = 0; k + 3 < V; k += 4) {
        const Block block = philox((position + static_cast<Wide>(k)) / 4, seed, stream, step);
        for (int word = 0; word < 4; ++word) bits[k + word] = block.word[word];
      }
      return;
    }
    Wide known = position / 4;
    Block block = philox(known, seed, stream, step);
    for (int k = 0; k < V; ++k) {
      const Wide at = position + stride * static_cast<Wide>(k);
      if (at / 4 != known) {
        known = at / 4;
        block = philox(known, seed, stream, step);
      }
      const Word low = at & 1 ? block.word[1] : block.word[0];
      const Word high = at & 1 ? block.word[3] : block.word[2];
      bits[k] = at & 2 ? high : low;
    }
  }
};

/// In [0, 1).
SR_HOST_DEVICE inline float uniform(Word bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

/// uniform(bits) >= p exactly where bits >> 8 >= threshold = ceil(p * 2^24).
template <class T>
SR_HOST_DEVICE T dropout(T x, Word bits, Word threshold, T factor) {
  return (bits >> 8) >= threshold ? x * factor : T(0);
}

}  // namespace shardrun::cuda::math
