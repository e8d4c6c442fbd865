// What a thread does with a unit of a box, and which body serves which call.
#pragma once

#include "base/dtype.h"
#include "device/cuda/bf16.h"
#include "device/cuda/boxes.h"

namespace shardrun::cuda {

template <class U>
struct CopyUnit {
  BoxMove move;
  const U* from;
  U* to;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const BoxMove::Place at = move.place(i);
    to[at.to] = from[at.from];
  }
};

template <class T>
SR_HOST_DEVICE inline void add_to(T& to, T x) {
  to = static_cast<T>(to + x);
}
SR_HOST_DEVICE inline void add_to(Bf16& to, Bf16 x) { assign(to, as_float(to) + as_float(x)); }

/// Units of N elements.
template <class T, int N>
struct AddUnit {
  BoxMove move;
  const Pack<T, N>* from;
  Pack<T, N>* to;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const BoxMove::Place at = move.place(i);
    const Pack<T, N> x = from[at.from];
    Pack<T, N> sum = to[at.to];
    for (int n = 0; n < N; ++n) add_to(sum.at[n], x.at[n]);
    to[at.to] = sum;
  }
};

/// each(count, body) calls body(i) for each i of [0, count).
template <class Each>
void copy_box_on(const Each& each, const void* src, void* dst, const BoxLoops& loops,
                 int64_t element_bytes) {
  const BoxMove move = move_of(loops, src, dst, element_bytes);
  with_unit(move.unit, [&](auto unit) {
    using U = decltype(unit);
    each(move.count, CopyUnit<U>{move, static_cast<const U*>(src), static_cast<U*>(dst)});
  });
}

template <class T, class Each>
void add_units_on(const Each& each, const void* src, void* dst, const BoxMove& move) {
  with_unit(move.unit, [&](auto unit) {
    constexpr int kN = static_cast<int>(sizeof(unit) / sizeof(T));
    if constexpr (kN > 0) {
      using U = Pack<T, kN>;
      each(move.count, AddUnit<T, kN>{move, static_cast<const U*>(src), static_cast<U*>(dst)});
    }
  });
}
template <class Each>
void add_box_on(const Each& each, const void* src, void* dst, const BoxLoops& loops, DType dtype) {
  const BoxMove move = move_of(loops, src, dst, size_of(dtype));
  dispatch(dtype, [&](auto tag) {
    using Host = typename decltype(tag)::type;
    using T = std::conditional_t<std::is_same_v<Host, bfloat16>, Bf16, Host>;
    add_units_on<T>(each, src, dst, move);
  });
}

}  // namespace shardrun::cuda
