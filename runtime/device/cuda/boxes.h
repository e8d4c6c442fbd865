// Strided copies and sums on a GPU; elements of 1, 2, 4 or 8 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <vector>

#include "base/shape.h"
#include "device/cuda/index.h"

namespace shardrun::cuda {

/// A box of two tensors as loops, the innermost last: as few as they can be.
struct BoxLoops {
  static constexpr int kMost = 8;
  int dims = 0;
  int64_t size[kMost] = {}, from[kMost] = {}, to[kMost] = {};  // strides in elements
  int64_t from_offset = 0, to_offset = 0, count = 1;

  /// A loop inside of all others: none if its size is 1, one with the last if they are one in both
  /// tensors. Throws unsupported if there would be more than kMost.
  void add(int64_t size, int64_t from, int64_t to);
  /// Does all of it lie side by side, in both?
  bool one_piece() const { return dims == 0 || (dims == 1 && from[0] == 1 && to[0] == 1); }
};
BoxLoops loops_of(const Box& src_box, const Box& dst_box, const Box& region);
/// From a dense tensor to one whose dim d is its dim perm[d].
BoxLoops turned(const Shape& from, const std::vector<int64_t>& perm);

/// The same in units of so many bytes, for a kernel.
struct BoxMove {
  int64_t unit = 1;
  int dims = 1;
  Divisor size[BoxLoops::kMost];
  int64_t from[BoxLoops::kMost] = {}, to[BoxLoops::kMost] = {};
  int64_t from_offset = 0, to_offset = 0, count = 0;

  struct Place {
    int64_t from, to;
  };
  /// Of the i-th unit in row-major order.
  SR_HOST_DEVICE Place place(int64_t i) const {
    Place at{from_offset, to_offset};
    for (int d = dims - 1; d > 0; --d) {
      const int64_t here = size[d].split(i);
      at.from += here * from[d];
      at.to += here * to[d];
    }
    return {at.from + i * from[0], at.to + i * to[0]};
  }
};
/// Units are as long as the innermost loop, its steps, and where the tensors begin allow.
BoxMove move_of(const BoxLoops& loops, const void* from, const void* to, int64_t element_bytes);

/// A copy by which neighbours in `from` come to lie apart, and others next to each other: in tiles,
/// read along `cols` and written along `rows`.
struct BoxTiles {
  static constexpr int kTile = 32;  // elements along each
  int64_t rows = 0, cols = 0;
  int64_t from_row = 0, to_col = 0;  // steps in elements; the others are 1
  Divisor row_tiles, col_tiles;
  int batch_dims = 0;  // the other loops
  Divisor batch_size[BoxLoops::kMost];
  int64_t batch_from[BoxLoops::kMost] = {}, batch_to[BoxLoops::kMost] = {};
  int64_t from_offset = 0, to_offset = 0, count = 0;  // count: tiles in all

  struct Place {
    int64_t from, to, row, col;  // of the tile's first element; from and to without row and col
  };
  SR_HOST_DEVICE Place place(int64_t tile) const {
    Place at{from_offset, to_offset, 0, 0};
    at.col = col_tiles.split(tile) * kTile;
    at.row = row_tiles.split(tile) * kTile;
    for (int d = batch_dims - 1; d >= 0; --d) {
      const int64_t here = batch_size[d].split(tile);
      at.from += here * batch_from[d];
      at.to += here * batch_to[d];
    }
    return at;
  }
};
/// Nullopt where the copy is no such, or rows or columns are so few that most of a tile would be
/// empty.
std::optional<BoxTiles> tiles_of(const BoxLoops& loops);

void launch_copy_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                     int64_t element_bytes);
void launch_add_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                    DType dtype);
void launch_fill(cudaStream_t stream, void* to, int64_t count, const void* element,
                 int64_t element_bytes);

}  // namespace shardrun::cuda
