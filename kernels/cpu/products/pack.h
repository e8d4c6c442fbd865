// Packing: a matrix laid out anew for a product, and narrowed from f32 to bf16 on the way where the
// product wants that.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace shardrun::cpu {

/// A matrix of f32 or bf16 as it lies. One of the strides is 1, the other any.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 0;  // elements

  MatrixView at(const void* elsewhere) const {
    return {elsewhere, dtype, rows, cols, row_stride, col_stride};
  }
};

/// b[k, n] in blocks, as oneDNN's fast products read it: [n / width][k / depth][depth /
/// pair][width] [pair], zeros behind the last row and column. bf16 stands in pairs along k, f32
/// alone. Example: bf16[768, 3072] with width 64 and depth 32 is [48][24][16][64][2].
struct BlockLayout {
  int64_t width = 0, depth = 0;
  int64_t bytes(int64_t k, int64_t n, DType dtype) const {
    return (n + width - 1) / width * width * ((k + depth - 1) / depth * depth) * size_of(dtype);
  }
};

/// Rows from `row` on and columns from `col` on of a matrix; multiples of BlockLayout::depth
/// and 16.
struct PartOf {
  int64_t rows = 0, cols = 0;  // of the whole
  int64_t row = 0, col = 0;
};

/// On all threads of the caller. `to`: f32 (from f32) or bf16 (from either). Of a part of a matrix
/// whose blocks begin at `out`, its own blocks, and the zeros behind the whole.
void pack_blocks(const MatrixView& from, const PartOf& part, DType to, const BlockLayout& layout,
                 void* out);
/// All of it.
inline void pack_blocks(const MatrixView& from, DType to, const BlockLayout& layout, void* out) {
  pack_blocks(from, {from.rows, from.cols}, to, layout, out);
}

/// Row-major and dense.
void pack_rows(const MatrixView& from, DType to, void* out);

/// A square of so many rows and columns of bf16, which the calling thread packs alone.
inline constexpr int64_t kSquare = 32;
inline constexpr int64_t kSquareBytes = kSquare * kSquare * 2;

/// Packs the square of a matrix that begins at (row, column); what is behind the matrix is zero.
using PackSquare = void (*)(const MatrixView& from, int64_t row, int64_t column, void* to);
/// [2][16][32], for matrices of this type and these strides. Rows of a are rows.
PackSquare pack_square_of_a(const MatrixView& from);
/// [16][32][2]: of b[k, n] pairs along k, as a block of BlockLayout{32, 32}.
PackSquare pack_square_of_b(const MatrixView& from);
/// The same from 32 rows of 32, wherever each is.
void pack_square_of_rows(const uint16_t* const* rows, void* to);

}  // namespace shardrun::cpu
