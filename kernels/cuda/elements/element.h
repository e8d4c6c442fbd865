// Elements of f32 and bf16 in kernels of our own: computed in f32, read and written 16 bytes at a
// time where they lie so. For host and device code.
#pragma once

#include "device/cuda/bf16.h"

namespace shardrun::cuda {

/// Elements as what is computed with: f32, or i64 for integers and booleans.
SR_HOST_DEVICE inline float as_number(float x) { return x; }
SR_HOST_DEVICE inline float as_number(Bf16 x) { return as_float(x); }
SR_HOST_DEVICE inline int64_t as_number(int64_t x) { return x; }
SR_HOST_DEVICE inline int64_t as_number(int32_t x) { return x; }
SR_HOST_DEVICE inline int64_t as_number(uint8_t x) { return x; }
SR_HOST_DEVICE inline int64_t as_number(bool x) { return x ? 1 : 0; }
SR_HOST_DEVICE inline void assign(int64_t& to, int64_t x) { to = x; }
SR_HOST_DEVICE inline void assign(int32_t& to, int64_t x) { to = static_cast<int32_t>(x); }
SR_HOST_DEVICE inline void assign(uint8_t& to, int64_t x) { to = static_cast<uint8_t>(x); }
SR_HOST_DEVICE inline void assign(bool& to, int64_t x) { to = x != 0; }
template <class T>
using Number = decltype(as_number(T{}));

/// Calls f(T{}) with the element type: float or Bf16.
template <class F>
void with_element(DType dtype, F&& f) {
  if (dtype == DType::f32) return f(float{});
  if (dtype == DType::bf16) return f(Bf16{});
  fail(ErrorKind::internal, "a GPU kernel for f32 and bf16 was given ", dtype);
}

template <class F>
void with_integer(DType dtype, F&& f) {
  if (dtype == DType::i64) return f(int64_t{});
  if (dtype == DType::i32) return f(int32_t{});
  if (dtype == DType::boolean) return f(bool{});
  fail(ErrorKind::internal, "a GPU kernel for integers was given ", dtype);
}
/// With either.
template <class F>
void with_number(DType dtype, F&& f) {
  if (is_float(dtype)) return with_element(dtype, f);
  with_integer(dtype, f);
}

/// Elements in 16 bytes.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <class T, int N>
SR_HOST_DEVICE bool is_aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (N * sizeof(T)) == 0;
}

/// N elements from p, at once if they lie on a boundary of that size.
template <int N, class T>
SR_HOST_DEVICE void read(const T* p, Number<T> (&to)[N]) {
  if (N > 1 && is_aligned<T, N>(p)) {
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(p);
    for (int i = 0; i < N; ++i) to[i] = as_number(pack.at[i]);
  } else {
    for (int i = 0; i < N; ++i) to[i] = as_number(p[i]);
  }
}

/// N elements from each of two, both of which are under way before either is used.
template <int N, class T>
SR_HOST_DEVICE void read_both(const T* p, const T* q, Number<T> (&a)[N], Number<T> (&b)[N]) {
  if (N > 1 && is_aligned<T, N>(p) && is_aligned<T, N>(q)) {
    const auto first = *reinterpret_cast<const Pack<T, N>*>(p);
    const auto second = *reinterpret_cast<const Pack<T, N>*>(q);
    for (int i = 0; i < N; ++i) a[i] = as_number(first.at[i]), b[i] = as_number(second.at[i]);
  } else {
    read(p, a);
    read(q, b);
  }
}

template <int N, class T>
SR_HOST_DEVICE void write(T* p, const Number<T> (&from)[N]) {
  if (N > 1 && is_aligned<T, N>(p)) {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) assign(pack.at[i], from[i]);
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
  } else {
    for (int i = 0; i < N; ++i) assign(p[i], from[i]);
  }
}

/// The first `n` of N: 0 behind them, or left as they are.
template <int N, class T>
SR_HOST_DEVICE void read_some(const T* p, int64_t n, float (&to)[N]) {
  if (n >= N) return read(p, to);
  for (int i = 0; i < N; ++i) to[i] = i < n ? as_float(p[i]) : 0.0f;
}
template <int N, class T>
SR_HOST_DEVICE void read_some_of_both(const T* p, const T* q, int64_t n, float (&a)[N],
                                      float (&b)[N]) {
  if (n >= N) return read_both(p, q, a, b);
  read_some(p, n, a);
  read_some(q, n, b);
}
template <int N, class T>
SR_HOST_DEVICE void write_some(T* p, int64_t n, const float (&from)[N]) {
  if (n >= N) return write(p, from);
  for (int i = 0; i < N; ++i) {
    if (i < n) assign(p[i], from[i]);
  }
}

}  // namespace shardrun::cuda
