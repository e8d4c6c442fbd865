// Team: the threads that do one row together, a warp or a block. The body of a kernel is a functor
// that is called by each of them:
//
//   struct RowSum {
//     const float* x; float* sums; int64_t cols;
//     template <class Team>
//     SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
//       float sum = 0;
//       columns<float>(team, row * cols, cols, [&](auto n, int64_t c) {
//         float v[n()];
//         read(x + row * cols + c, v);
//         for (float each : v) sum += each;
//       });
//       sum = team.sum(sum);  // all get it; all must call it
//       if (team.rank() == 0) sums[row] = sum;
//     }
//   };
//
// teams.cuh's teams are a GPU's, tests bring ones of the host: so every body also runs there.
#pragma once

#include "kernels/cuda/elements/element.h"

namespace shardrun::cuda {

/// N for code that device code may call, which std::integral_constant's is not.
template <int N>
struct Width {
  SR_HOST_DEVICE constexpr int operator()() const { return N; }
};

/// A team of one.
struct Alone {
  SR_HOST_DEVICE int rank() const { return 0; }
  SR_HOST_DEVICE int size() const { return 1; }
  template <class V>
  SR_HOST_DEVICE V sum(V value) const {
    return value;
  }
  SR_HOST_DEVICE float max(float value) const { return value; }
  template <class V, class F>
  SR_HOST_DEVICE V fold(V value, const F&, V) const {
    return value;
  }
};

/// A body for teams as one for single threads.
template <class Body>
struct DoneAlone {
  Body body;
  SR_HOST_DEVICE void operator()(int64_t row) const { body(Alone{}, row); }
};

/// Calls f(n, c) for parts of a row, each for one thread of the team: n() columns from c on,
/// kWide<T> of them where elements `at` + c of a tensor of T begin 16 bytes, else one. `at`: the
/// row's first element.
template <class T, class Team, class F>
SR_HOST_DEVICE void columns(const Team& team, int64_t at, int64_t cols, const F& f) {
  constexpr int kN = kWide<T>;
  const Width<kN> wide{};
  const Width<1> one{};
  int64_t head = (kN - at % kN) % kN;
  if (head > cols) head = cols;
  const int64_t packs = (cols - head) / kN;
  for (int64_t c = team.rank(); c < head; c += team.size()) f(one, c);
  for (int64_t i = team.rank(); i < packs; i += team.size()) f(wide, head + i * kN);
  for (int64_t c = head + packs * kN + team.rank(); c < cols; c += team.size()) f(one, c);
}

}  // namespace shardrun::cuda
