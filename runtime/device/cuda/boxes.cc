// Which loops a box is, and in what units it is moved.
#include "device/cuda/boxes.h"

#include <algorithm>

namespace shardrun::cuda {

void BoxLoops::add(int64_t extent, int64_t from_step, int64_t to_step) {
  count *= extent;
  if (extent == 1) return;
  const int last = dims - 1;
  if (dims > 0 && from[last] == from_step * extent && to[last] == to_step * extent) {
    size[last] *= extent, from[last] = from_step, to[last] = to_step;
    return;
  }
  SR_REQUIRE(dims < kMost, unsupported, "a cut tensor has more than ", kMost,
             " dims that lie apart, at most so many can be copied on a GPU");
  size[dims] = extent, from[dims] = from_step, to[dims] = to_step;
  ++dims;
}

BoxLoops loops_of(const Box& src_box, const Box& dst_box, const Box& region) {
  const Shape src = row_major_strides(box_shape(src_box)),
              dst = row_major_strides(box_shape(dst_box));
  BoxLoops loops;
  for (size_t d = 0; d < region.size(); ++d) {
    loops.from_offset += (region[d].begin - src_box[d].begin) * src[d];
    loops.to_offset += (region[d].begin - dst_box[d].begin) * dst[d];
    loops.add(region[d].size, src[d], dst[d]);
  }
  return loops;
}

BoxLoops turned(const Shape& from, const std::vector<int64_t>& perm) {
  Shape to;
  for (int64_t d : perm) to.push_back(from[static_cast<size_t>(d)]);
  const Shape from_strides = row_major_strides(from), to_strides = row_major_strides(to);
  BoxLoops loops;
  for (size_t d = 0; d < to.size(); ++d)
    loops.add(to[d], from_strides[static_cast<size_t>(perm[d])], to_strides[d]);
  return loops;
}

BoxMove move_of(const BoxLoops& loops, const void* from, const void* to, int64_t element_bytes) {
  const int last = loops.dims - 1;
  const bool dense = loops.dims > 0 && loops.from[last] == 1 && loops.to[last] == 1;
  int64_t lengths = loops.from_offset | loops.to_offset | (dense ? loops.size[last] : 1);
  for (int d = 0; dense && d < last; ++d) lengths |= loops.from[d] | loops.to[d];
  BoxMove move;
  move.unit = unit_of(address_of(from) | address_of(to) |
                      static_cast<uint64_t>(lengths) * static_cast<uint64_t>(element_bytes));
  // An element that does not lie on its own boundary is no element.
  SR_REQUIRE(move.unit >= element_bytes, internal, "elements of ", element_bytes,
             " bytes begin on boundaries of ", move.unit);
  const int64_t elements = move.unit / element_bytes;  // 1 if the innermost loop is not dense
  move.count = loops.count / elements;
  move.from_offset = loops.from_offset / elements, move.to_offset = loops.to_offset / elements;
  move.dims = std::max(loops.dims, 1);
  for (int d = 0; d < loops.dims; ++d) {
    const bool unit = dense && d == last;
    move.size[d] = Divisor(unit ? loops.size[d] / elements : loops.size[d], move.count);
    move.from[d] = unit ? 1 : loops.from[d] / elements;
    move.to[d] = unit ? 1 : loops.to[d] / elements;
  }
  return move;
}

std::optional<BoxTiles> tiles_of(const BoxLoops& loops) {
  constexpr int64_t kTile = BoxTiles::kTile, kLeast = kTile / 2;
  const int last = loops.dims - 1;
  int near = 0;  // neighbours in `from`
  while (near < last && loops.from[near] != 1) ++near;
  if (near >= last || loops.to[last] != 1 || loops.size[last] < kLeast || loops.size[near] < kLeast)
    return std::nullopt;
  BoxTiles tiles;
  tiles.rows = loops.size[last], tiles.cols = loops.size[near];
  tiles.from_row = loops.from[last], tiles.to_col = loops.to[near];
  tiles.from_offset = loops.from_offset, tiles.to_offset = loops.to_offset;
  const int64_t row_tiles = (tiles.rows + kTile - 1) / kTile,
                col_tiles = (tiles.cols + kTile - 1) / kTile;
  tiles.count = row_tiles * col_tiles * (loops.count / (tiles.rows * tiles.cols));
  tiles.row_tiles = Divisor(row_tiles, tiles.count);
  tiles.col_tiles = Divisor(col_tiles, tiles.count);
  for (int d = 0; d < last; ++d) {
    if (d == near) continue;
    tiles.batch_size[tiles.batch_dims] = Divisor(loops.size[d], tiles.count);
    tiles.batch_from[tiles.batch_dims] = loops.from[d];
    tiles.batch_to[tiles.batch_dims++] = loops.to[d];
  }
  return tiles;
}

}  // namespace shardrun::cuda
