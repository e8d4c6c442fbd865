// Runs of memcpy where both sides are contiguous, tiles in registers for transposition, loops
// otherwise.
#include "kernels/cpu/strided_copy.h"

#include "base/round_up.h"
#include "base/short_array.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {

StridedCopy::StridedCopy(const Shape& dims, const Shape& src_strides, int64_t src_base,
                         const Shape& dst_strides, int64_t dst_base, int64_t element_bytes)
    : src_base_(src_base), dst_base_(dst_base), bytes_(element_bytes) {
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    const bool merge = !dims_.empty() && src_.back() == src_strides[d] * dims[d] &&
                       dst_.back() == dst_strides[d] * dims[d];
    if (merge) {
      dims_.back() *= dims[d], src_.back() = src_strides[d], dst_.back() = dst_strides[d];
    } else {
      dims_.push_back(dims[d]), src_.push_back(src_strides[d]), dst_.push_back(dst_strides[d]);
    }
  }
  if (dims_.empty()) dims_ = {1}, src_ = {1}, dst_ = {1};
  if (src_.back() != 1 && dst_.back() == 1) {
    for (size_t d = 0; d + 1 < dims_.size(); ++d) {
      if (src_[d] == 1) tile_dim_ = static_cast<int>(d);
    }
  }
}

StridedCopy StridedCopy::transpose(const Shape& shape, const std::vector<int64_t>& perm,
                                   int64_t element_bytes) {
  const Shape strides = row_major_strides(shape);
  Shape dims, src;
  for (int64_t p : perm) {
    dims.push_back(shape[static_cast<size_t>(p)]);
    src.push_back(strides[static_cast<size_t>(p)]);
  }
  return StridedCopy(dims, src, 0, row_major_strides(dims), 0, element_bytes);
}

namespace {

template <class T>
void copy_line(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t n) {
  if (src_stride == 1 && dst_stride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(T));
  } else if (src_stride == 0 && dst_stride == 1) {
    std::fill_n(dst, n, *src);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i * dst_stride] = src[i * src_stride];
  }
}

/// Where line after line of dims 0 .. last - 1 begins, counted on without division.
class Lines {
 public:
  Lines(const Shape& dims, const Shape& src_strides, const Shape& dst_strides, int64_t line)
      : dims_(dims), src_(src_strides), dst_(dst_strides), index_(dims.size()) {
    for (size_t d = dims.size() - 1; d-- > 0; line /= dims_[d]) {
      index_[d] = line % dims_[d];
      from += index_[d] * src_[d], to += index_[d] * dst_[d];
    }
  }
  int64_t from = 0, to = 0;

  void next() {
    for (size_t d = dims_.size() - 1; d-- > 0;) {
      from += src_[d], to += dst_[d];
      if (++index_[d] < dims_[d]) return;
      from -= dims_[d] * src_[d], to -= dims_[d] * dst_[d];
      index_[d] = 0;
    }
  }

 private:
  const Shape &dims_, &src_, &dst_;
  ShortArray<int64_t> index_;
};

constexpr int64_t kCacheLine = 64;

template <class T>
void copy_lines(const Shape& dims, const Shape& src_strides, const Shape& dst_strides, const T* src,
                T* dst) {
  const size_t last = dims.size() - 1;
  const int64_t length = dims[last];
  // Long lines are cut so that a single one still occupies every thread.
  const int64_t part = 65536, parts = std::max<int64_t>(1, (length + part - 1) / part);
  int64_t pieces = parts;
  for (size_t d = 0; d < last; ++d) pieces *= dims[d];
  parallel_ranges(length == 0 ? 0 : pieces, row_grain(std::min(length, part)) * 4,
                  [&](int64_t begin, int64_t end) {
                    Lines lines(dims, src_strides, dst_strides, begin / parts);
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t start = item % parts * part, n = std::min(part, length - start);
                      copy_line(src + lines.from + start * src_strides[last], src_strides[last],
                                dst + lines.to + start * dst_strides[last], dst_strides[last], n);
                      if ((item + 1) % parts == 0) lines.next();
                    }
                  });
}

/// Elements along a side of a tile, whose lines are a cache's.
template <class T>
constexpr int64_t kTile = kCacheLine / static_cast<int64_t>(sizeof(T));

/// A whole tile: lines that begin `src_col` apart become lines `dst_row` apart.
template <class T>
void copy_tile(const T* src, int64_t src_col, T* dst, int64_t dst_row) {
  constexpr bool halves = sizeof(T) == 2, units = sizeof(T) == 4 && kLanesFitRegisters;
  if constexpr (halves || units) {
    Units lines[kTile<T>];
    if constexpr (halves) {
      transpose_halves(src, src_col, lines);
    } else {
      for (int64_t c = 0; c < kTile<T>; ++c) lines[c] = load_vector<Units>(src + c * src_col);
      transpose(lines);
    }
    for (int64_t r = 0; r < kTile<T>; ++r) std::memcpy(dst + r * dst_row, &lines[r], sizeof(Units));
  } else {
    T tile[kTile<T>][kTile<T>];  // tile[c][r]: reads and writes both run along contiguous memory
    for (int64_t c = 0; c < kTile<T>; ++c)
      std::memcpy(tile[c], src + c * src_col, static_cast<size_t>(kCacheLine));
    for (int64_t r = 0; r < kTile<T>; ++r) {
      for (int64_t c = 0; c < kTile<T>; ++c) dst[r * dst_row + c] = tile[c][r];
    }
  }
}

template <class T>
void copy_tiles(const Shape& dims, const Shape& src_strides, const Shape& dst_strides,
                size_t tile_dim, const T* src, T* dst) {
  const size_t last = dims.size() - 1;
  const int64_t rows = dims[tile_dim], cols = dims[last];
  const int64_t row_tiles = divide_up(rows, kTile<T>), col_tiles = divide_up(cols, kTile<T>);
  int64_t items = row_tiles * col_tiles;
  for (size_t d = 0; d < last; ++d) items *= d == tile_dim ? 1 : dims[d];
  const int64_t src_col = src_strides[last], dst_row = dst_strides[tile_dim];
  struct Tile {
    int64_t from, to, rows, cols;
  };
  const auto tile_of = [&](int64_t item) {
    const int64_t c = item % col_tiles * kTile<T>, r = item / col_tiles % row_tiles * kTile<T>;
    Tile tile{c * src_col + r, c + r * dst_row, std::min(kTile<T>, rows - r),
              std::min(kTile<T>, cols - c)};
    int64_t rest = item / (col_tiles * row_tiles);
    for (size_t d = last; d-- > 0;) {
      if (d == tile_dim) continue;
      const int64_t index = rest % dims[d];
      rest /= dims[d];
      tile.from += index * src_strides[d], tile.to += index * dst_strides[d];
    }
    return tile;
  };
  parallel_ranges(items, 16, [&](int64_t begin, int64_t end) {
    Tile tile = tile_of(begin);
    for (int64_t item = begin; item < end; ++item) {
      const Tile next = tile_of(std::min(item + 1, end - 1));
      for (int64_t c = 0; c < next.cols; ++c) __builtin_prefetch(src + next.from + c * src_col);
      const T* from = src + tile.from;
      T* to = dst + tile.to;
      if (tile.rows == kTile<T> && tile.cols == kTile<T>) {
        copy_tile(from, src_col, to, dst_row);
      } else {
        for (int64_t r = 0; r < tile.rows; ++r) {
          for (int64_t c = 0; c < tile.cols; ++c) to[r * dst_row + c] = from[c * src_col + r];
        }
      }
      tile = next;
    }
  });
}

}  // namespace

void StridedCopy::run(const void* src, void* dst) const {
  for (int64_t d : dims_) {
    if (d == 0) return;
  }
  auto run_as = [&]<class T>(TypeTag<T>) {
    const T* from = static_cast<const T*>(src) + src_base_;
    T* to = static_cast<T*>(dst) + dst_base_;
    if (tile_dim_ >= 0) {
      copy_tiles(dims_, src_, dst_, static_cast<size_t>(tile_dim_), from, to);
    } else {
      copy_lines(dims_, src_, dst_, from, to);
    }
  };
  switch (bytes_) {
    case 1: return run_as(TypeTag<uint8_t>{});
    case 2: return run_as(TypeTag<uint16_t>{});
    case 4: return run_as(TypeTag<uint32_t>{});
    default: return run_as(TypeTag<uint64_t>{});
  }
}

}  // namespace shardrun::cpu
