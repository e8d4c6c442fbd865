// What threads do with a unit or a tile of a box, and which body serves which call.
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

/// One of 256 threads does load for all elements of a tile that are its own, then, when all have,
/// store. Between the two they lie in `tile`, whose rows are one longer so that its columns are in
/// different banks.
template <class U>
struct CopyTile {
  using Element = U;
  static constexpr int kTile = BoxTiles::kTile, kThreads = 256, kLines = kThreads / kTile;
  static constexpr int kTileElements = kTile * (kTile + 1);

  BoxTiles tiles;
  const U* from;
  U* to;

  SR_HOST_DEVICE void load(int64_t i, int thread, U* tile) const {
    const BoxTiles::Place at = tiles.place(i);
    const int64_t col = at.col + thread % kTile;
    for (int line = thread / kTile; line < kTile; line += kLines) {
      if (at.row + line < tiles.rows && col < tiles.cols)
        tile[line * (kTile + 1) + thread % kTile] =
            from[at.from + (at.row + line) * tiles.from_row + col];
    }
  }
  SR_HOST_DEVICE void store(int64_t i, int thread, const U* tile) const {
    const BoxTiles::Place at = tiles.place(i);
    const int64_t row = at.row + thread % kTile;
    for (int line = thread / kTile; line < kTile; line += kLines) {
      if (at.col + line < tiles.cols && row < tiles.rows)
        to[at.to + (at.col + line) * tiles.to_col + row] =
            tile[thread % kTile * (kTile + 1) + line];
    }
  }
};

/// on.each(count, body) calls body(i) for each i of [0, count); on.tiles(count, body) does as
/// CopyTile says.
template <class On>
void copy_box_on(const On& on, const void* src, void* dst, const BoxLoops& loops,
                 int64_t element_bytes) {
  if (const std::optional<BoxTiles> tiles = tiles_of(loops)) {
    return with_unit(element_bytes, [&](auto element) {
      using U = decltype(element);
      on.tiles(tiles->count, CopyTile<U>{*tiles, static_cast<const U*>(src), static_cast<U*>(dst)});
    });
  }
  const BoxMove move = move_of(loops, src, dst, element_bytes);
  with_unit(move.unit, [&](auto unit) {
    using U = decltype(unit);
    on.each(move.count, CopyUnit<U>{move, static_cast<const U*>(src), static_cast<U*>(dst)});
  });
}

template <class T, class On>
void add_units_on(const On& on, const void* src, void* dst, const BoxMove& move) {
  with_unit(move.unit, [&](auto unit) {
    constexpr int kN = static_cast<int>(sizeof(unit) / sizeof(T));
    if constexpr (kN > 0) {
      using U = Pack<T, kN>;
      on.each(move.count, AddUnit<T, kN>{move, static_cast<const U*>(src), static_cast<U*>(dst)});
    }
  });
}
template <class On>
void add_box_on(const On& on, const void* src, void* dst, const BoxLoops& loops, DType dtype) {
  const BoxMove move = move_of(loops, src, dst, size_of(dtype));
  dispatch(dtype, [&](auto tag) {
    using Host = typename decltype(tag)::type;
    using T = std::conditional_t<std::is_same_v<Host, bfloat16>, Bf16, Host>;
    add_units_on<T>(on, src, dst, move);
  });
}

}  // namespace shardrun::cuda
