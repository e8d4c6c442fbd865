// Functions of 16 numbers at a time, in vectors.
#pragma once

#include "base/lanes.h"
#include "kernels/cpu/functions.h"

namespace shardrun::cpu {

template <class F>
Lanes of_each(const Lanes& x, F f) {
  alignas(64) float v[kLanes];
  store_lanes(v, x);
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i) v[i] = f(v[i]);
  return load_lanes(v);
}

inline Lanes exp(const Lanes& x) {
  return of_each(x, [](float v) { return exp(v); });
}
inline Lanes log(const Lanes& x) {
  return of_each(x, [](float v) { return log(v); });
}

}  // namespace shardrun::cpu
