// Tiles of 16 x 16 units go through registers: a unit is an f32, or a pair of bf16 that are
// neighbours along k. Where k runs the other way than the target wants it, the tile is transposed.
#include "kernels/cpu/products/pack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kTile = kLanes;

template <int... I>
Units even(Units a, Units b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...);
}
template <int... I>
Units odd(Units a, Units b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + 1)...);
}

using Lane = std::make_integer_sequence<int, kTile>;

/// The lines of a matrix, along which it is contiguous.
struct Lines {
  const char* data;
  int64_t lines, length, stride;  // stride in bytes
};

/// Reads the units of one tile. kFrom, kTo: element types; kAcross: k runs across lines, so that a
/// unit's pair is taken from two of them.
template <DType kFrom, DType kTo, bool kAcross>
struct Reader {
  static constexpr int64_t kBytes = kFrom == DType::f32 ? 4 : 2, kPair = kTo == DType::f32 ? 1 : 2;
  static constexpr int64_t kLines = kAcross ? kTile * kPair : kTile,
                           kLength = kAcross ? kTile : kTile * kPair;

  static Units widened(const char* from) {  // 16 elements, bf16 in the low half
    if constexpr (kFrom == DType::f32) {
      return narrow(load_vector<Units>(from));
    } else {
      return widen(load_vector<Halves>(from));
    }
  }

  static void read(const char* from, int64_t stride, Units* tile) {
    for (int64_t i = 0; i < kTile; ++i) {
      const char* at = from + i * stride;
      if constexpr (kTo == DType::f32 || (!kAcross && kFrom == DType::bf16)) {
        tile[i] = load_vector<Units>(at);
      } else if constexpr (kAcross) {
        tile[i] = widened(at + i * stride) | widened(at + (i + 1) * stride) << 16;
      } else {
        const Units a = widened(at), b = widened(at + kTile * kBytes);
        tile[i] = even(a, b, Lane{}) | odd(a, b, Lane{}) << 16;
      }
    }
  }

  /// The tile whose first element is (line, at); what is not there is zero.
  static void read(const Lines& m, int64_t line, int64_t at, Units* tile) {
    const char* from = m.data + line * m.stride + at * kBytes;
    const int64_t lines = std::min(kLines, m.lines - line),
                  bytes = std::min(kLength, m.length - at) * kBytes;
    if (lines == kLines && bytes == kLength * kBytes) return read(from, m.stride, tile);
    alignas(64) char stage[kLines * kLength * kBytes] = {};
    for (int64_t i = 0; i < lines; ++i)
      std::memcpy(stage + i * kLength * kBytes, from + i * m.stride, static_cast<size_t>(bytes));
    read(stage, kLength * kBytes, tile);
  }
};

Lines lines_of(const MatrixView& m, bool along_rows) {
  return {static_cast<const char*>(m.data), along_rows ? m.rows : m.cols,
          along_rows ? m.cols : m.rows,
          (along_rows ? m.row_stride : m.col_stride) * size_of(m.dtype)};
}

using Line = uint16_t __attribute__((vector_size(64)));  // of 32 bf16

template <int... I>
void interleave(const Line& a, const Line& b, Line* out, std::integer_sequence<int, I...>) {
  out[0] = __builtin_shufflevector(a, b, (I / 2 + I % 2 * 32)...);
  out[1] = __builtin_shufflevector(a, b, (I / 2 + 16 + I % 2 * 32)...);
}

constexpr int64_t kPairedRows = 2 * kTile, kPairedColumns = 2 * kTile;

/// Two rows that are neighbours along k, 32 columns of them.
void interleave(const uint16_t* row, const uint16_t* next, Line* out) {
  interleave(load_vector<Line>(row), load_vector<Line>(next), out,
             std::make_integer_sequence<int, kPairedColumns>{});
}

/// Rows of bf16 that are neighbours along k, whole blocks of 32 x 32. place(unit along k, column):
/// where 16 units go, `step` behind those of the unit before.
template <class Place>
void interleave_rows(const MatrixView& m, int64_t step, Place&& place) {
  parallel_ranges(m.rows / kPairedRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      for (int64_t c = 0; c < m.cols; c += kPairedColumns) {
        const auto* row =
            static_cast<const uint16_t*>(m.data) + block * kPairedRows * m.row_stride + c;
        Units *left = place(block * kTile, c), *right = place(block * kTile, c + kTile);
        for (int64_t i = 0; i < kTile; ++i, row += 2 * m.row_stride, left += step, right += step) {
          Line out[2];
          interleave(row, row + m.row_stride, out);
          *left = std::bit_cast<Units>(out[0]);
          *right = std::bit_cast<Units>(out[1]);
        }
      }
    }
  });
}

/// Calls store(unit along k, other index, tile) for every tile, the tile's rows along k if
/// kRowsAlongK, else along the other dim.
template <DType kFrom, DType kTo, bool kAcross, bool kRowsAlongK, class Store>
void for_tiles(const Lines& m, Store&& store) {
  using R = Reader<kFrom, kTo, kAcross>;
  constexpr int64_t kSegment = 32;  // tiles in a row of which one thread takes so many
  const int64_t rows = (m.lines + R::kLines - 1) / R::kLines,
                cols = (m.length + R::kLength - 1) / R::kLength,
                segments = (cols + kSegment - 1) / kSegment;
  parallel_ranges(rows * segments, 1, [&](int64_t begin, int64_t end) {
    Units tile[kTile];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / segments, from = item % segments * kSegment;
      for (int64_t c = from; c < std::min(from + kSegment, cols); ++c) {
        R::read(m, r * R::kLines, c * R::kLength, tile);
        if (kAcross != kRowsAlongK) transpose(tile);
        store((kAcross ? r : c) * kTile, (kAcross ? c : r) * kTile, tile);
      }
    }
  });
}

template <bool kRowsAlongK, class Store>
void for_tiles(const MatrixView& from, DType to, bool across, const Lines& m, Store&& store) {
  SR_REQUIRE(from.dtype == to || (from.dtype == DType::f32 && to == DType::bf16), internal,
             "packs ", from.dtype, " as ", to);
  const auto run = [&]<DType kFrom, DType kTo>() {
    if (across) {
      for_tiles<kFrom, kTo, true, kRowsAlongK>(m, store);
    } else {
      for_tiles<kFrom, kTo, false, kRowsAlongK>(m, store);
    }
  };
  if (to == DType::f32) return run.template operator()<DType::f32, DType::f32>();
  if (from.dtype == DType::f32) return run.template operator()<DType::f32, DType::bf16>();
  run.template operator()<DType::bf16, DType::bf16>();
}

/// kLeft: of the left operand, [2][16][32]; else [16][32][2].
template <DType kFrom, bool kAcross, bool kLeft>
void pack_square(const MatrixView& from, int64_t row, int64_t column, void* to) {
  using R = Reader<kFrom, DType::bf16, kAcross>;
  const int64_t k = kLeft ? column : row, other = kLeft ? row : column;
  auto* out = static_cast<Units*>(to);
  if constexpr (kFrom == DType::bf16 && kAcross && !kLeft) {
    if (row + kSquare <= from.rows && column + kSquare <= from.cols) {
      const auto* at = static_cast<const uint16_t*>(from.data) + row * from.row_stride + column;
      for (int64_t i = 0; i < kTile; ++i, at += 2 * from.row_stride, out += 2) {
        Line lines[2];
        interleave(at, at + from.row_stride, lines);
        std::memcpy(out, lines, sizeof(lines));
      }
      return;
    }
  }
  const Lines lines = lines_of(from, kLeft != kAcross);
  for (int64_t half = 0; half < 2; ++half) {
    Units tile[kTile];
    const int64_t at = other + half * kTile;
    if (at < (kLeft ? from.rows : from.cols) && k < (kLeft ? from.cols : from.rows)) {
      R::read(lines, kAcross ? k : at, kAcross ? at : k, tile);
      if (kAcross == kLeft) transpose(tile);
    } else {
      std::fill_n(tile, kTile, Units{});
    }
    for (int64_t i = 0; i < kTile; ++i) out[kLeft ? half * kTile + i : 2 * i + half] = tile[i];
  }
}

template <bool kLeft>
PackSquare pack_square_of(DType from, bool across) {
  if (from == DType::f32) {
    return across ? pack_square<DType::f32, true, kLeft> : pack_square<DType::f32, false, kLeft>;
  }
  return across ? pack_square<DType::bf16, true, kLeft> : pack_square<DType::bf16, false, kLeft>;
}

}  // namespace

PackSquare pack_square_of_a(const MatrixView& from) {
  return pack_square_of<true>(from.dtype, from.row_stride == 1 && from.col_stride != 1);
}

PackSquare pack_square_of_b(const MatrixView& from) {
  return pack_square_of<false>(from.dtype, from.col_stride == 1);
}

void pack_square_of_rows(const uint16_t* const* rows, void* to) {
  auto* out = static_cast<Line*>(to);
  for (int64_t i = 0; i < kSquare; i += 2, out += 2) interleave(rows[i], rows[i + 1], out);
}

void pack_blocks(const MatrixView& from, const PartOf& part, DType to, const BlockLayout& layout,
                 void* out) {
  const bool across = from.col_stride == 1;  // k runs along rows: a line is a row
  const int64_t pair = to == DType::f32 ? 1 : 2, depth = layout.depth / pair;  // in units
  const int64_t width = layout.width, first = part.row / pair;
  const auto deep = [&](int64_t rows) { return (rows + layout.depth - 1) / layout.depth * depth; };
  // Panel n / width holds all of k, `width` units for each.
  const auto place = [&](int64_t k, int64_t n) {
    n += part.col;
    return static_cast<Units*>(out) +
           (n / width * deep(part.rows) * width + (first + k) * width + n % width) / kTile;
  };
  const int64_t step = width / kTile;
  // Of the rows from `row` on the columns from `col` on.
  const auto by_tiles = [&](int64_t row, int64_t rows, int64_t col) {
    MatrixView rest = from;
    rest.data = static_cast<const char*>(from.data) +
                (row * from.row_stride + col * from.col_stride) * size_of(from.dtype);
    rest.rows = rows, rest.cols = from.cols - col;
    if (rest.rows == 0 || rest.cols == 0) return;
    for_tiles<true>(rest, to, across, lines_of(rest, across),
                    [&](int64_t k, int64_t n, Units* tile) {
                      Units* at = place(row / pair + k, col + n);
                      for (int64_t i = 0; i < kTile; ++i) at[i * step] = tile[i];
                    });
  };
  if (across && from.dtype == DType::bf16) {
    MatrixView whole = from;
    whole.rows = from.rows / kPairedRows * kPairedRows;
    whole.cols = from.cols / kPairedColumns * kPairedColumns;
    interleave_rows(whole, step, place);
    by_tiles(0, whole.rows, whole.cols);
    by_tiles(whole.rows, from.rows - whole.rows, 0);
  } else {
    by_tiles(0, from.rows, 0);
  }
  if (part.col + from.cols < part.cols) return;
  // Columns up to the panel's end that no tile reached.
  const int64_t begin = (from.cols + kTile - 1) / kTile * kTile,
                end = (part.cols + width - 1) / width * width - part.col;
  for (int64_t n = begin; n < end; n += kTile) {
    Units* at = place(0, n);
    for (int64_t k = 0; k < deep(from.rows); ++k) at[k * width / kTile] = Units{};
  }
}

void pack_rows(const MatrixView& from, DType to, void* out) {
  const bool across = from.row_stride == 1 && from.col_stride != 1;
  const int64_t pair = to == DType::f32 ? 1 : 2, size = size_of(to);
  for_tiles<false>(from, to, across, lines_of(from, !across),
                   [&](int64_t k, int64_t m, Units* tile) {
                     char* at = static_cast<char*>(out) + (m * from.cols + k * pair) * size;
                     const int64_t rows = std::min(kTile, from.rows - m),
                                   cols = std::min(kTile * pair, from.cols - k * pair);
                     for (int64_t i = 0; i < rows; ++i, at += from.cols * size) {
                       if (cols == kTile * pair) {
                         std::memcpy(at, &tile[i], sizeof(Units));
                       } else {
                         std::memcpy(at, &tile[i], static_cast<size_t>(cols * size));
                       }
                     }
                   });
}

}  // namespace shardrun::cpu
