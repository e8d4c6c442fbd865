// What a thread does with a unit of several ranks' memory, and which body serves which call.
#pragma once

#include <algorithm>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "collectives/communicator.h"
#include "device/cuda/bf16.h"
#include "device/cuda/index.h"

namespace shardrun::cuda {

/// What an element is reduced as.
template <class T>
SR_HOST_DEVICE inline T as_term(T x) {
  return x;
}
SR_HOST_DEVICE inline float as_term(Bf16 x) { return as_float(x); }
template <class T>
SR_HOST_DEVICE inline void put_term(T& to, T x) {
  to = x;
}
SR_HOST_DEVICE inline void put_term(Bf16& to, float x) { assign(to, x); }

template <class A>
SR_HOST_DEVICE A combine(A a, A b, Reduction op) {
  if (op == Reduction::sum) return static_cast<A>(a + b);
  if (op == Reduction::prod) return static_cast<A>(a * b);
  if (a != a) return a;  // a NaN wins
  if (b != b) return b;
  const bool first = op == Reduction::max ? a >= b : a <= b;
  return first ? a : b;
}

/// N elements, ranks from left to right; behind the last whole unit those that are left.
template <class T, int N>
struct ReduceUnit {
  static constexpr int kMost = 64;  // operands of one launch
  const T* in[kMost];
  T* out;
  int64_t count;  // elements
  int terms;
  Reduction op;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i * N;
    if (at + N <= count) return reduce<N>(at);
    for (int64_t k = at; k < count; ++k) reduce<1>(k);
  }

 private:
  template <int M>
  SR_HOST_DEVICE void reduce(int64_t at) const {
    using Unit = Pack<T, M>;
    decltype(as_term(T{})) sum[M];
    Unit unit = *reinterpret_cast<const Unit*>(in[0] + at);
    for (int n = 0; n < M; ++n) sum[n] = as_term(unit.at[n]);
    for (int r = 1; r < terms; ++r) {
      unit = *reinterpret_cast<const Unit*>(in[r] + at);
      for (int n = 0; n < M; ++n) sum[n] = combine(sum[n], as_term(unit.at[n]), op);
    }
    for (int n = 0; n < M; ++n) put_term(unit.at[n], sum[n]);
    *reinterpret_cast<Unit*>(out + at) = unit;
  }
};

/// Calls f(T{}) with the element type.
template <class F>
void with_term(DType dtype, const F& f) {
  dispatch(dtype, [&](auto tag) {
    using Host = typename decltype(tag)::type;
    f(std::conditional_t<std::is_same_v<Host, bfloat16>, Bf16, Host>());
  });
}

/// Calls f(ReduceUnit<T, N>{}) with as many elements as `unit` bytes hold, if they hold one.
template <class T, class F>
void with_reduce_unit(int64_t unit, const F& f) {
  with_unit(unit, [&](auto bytes) {
    constexpr int kN = static_cast<int>(sizeof(bytes) / sizeof(T));
    if constexpr (kN > 0) f(ReduceUnit<T, kN>{});
  });
}

/// each(count, body) calls body(i) for each i of [0, count).
template <class Each>
void reduce_on(const Each& each, std::span<const void* const> in, void* out, int64_t count,
               DType dtype, Reduction op) {
  constexpr size_t kMost = ReduceUnit<char, 1>::kMost;
  SR_REQUIRE(in.size() <= kMost, unsupported, in.size(), " ranks share memory, wanted at most ",
             kMost);
  uint64_t all = address_of(out);
  for (const void* term : in) all |= address_of(term);
  const int64_t unit = unit_of(all);
  SR_REQUIRE(unit >= size_of(dtype), internal, "elements of ", size_of(dtype),
             " bytes begin on boundaries of ", unit);
  with_term(dtype, [&](auto element) {
    using T = decltype(element);
    with_reduce_unit<T>(unit, [&](auto body) {
      for (size_t r = 0; r < in.size(); ++r) body.in[r] = static_cast<const T*>(in[r]);
      body.out = static_cast<T*>(out);
      body.count = count;
      body.terms = static_cast<int>(in.size());
      body.op = op;
      const int64_t n = unit / static_cast<int64_t>(sizeof(T));
      each((count + n - 1) / n, body);
    });
  });
}

}  // namespace shardrun::cuda
