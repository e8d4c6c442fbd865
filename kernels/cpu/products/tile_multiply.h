// Products by the processor's own tiles of bf16 (AMX), whatever their operands and results look
// like in memory: who has them packs squares of 32 x 32 numbers, and writes rows of sums.
#pragma once

#include <cstdint>

#include "kernels/cpu/products/pack.h"

namespace shardrun::cpu {

/// Memory that is read soon: rows of lines, brought into the second cache.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0, rows = 0, row_bytes = 0;  // of a row; bytes from row to row
  int64_t line = 0, lines_a_step = 1;

  void step() {
    for (int64_t i = 0; i < lines_a_step && rows > 0; ++i) {
      __builtin_prefetch(at + 64 * line, 0, 2);
      if (++line < lines) continue;
      line = 0, at += row_bytes, --rows;
    }
  }
};

/// At most 32 rows of f32 sums, on their way to the result: rows from m on, columns from n on.
struct TileRows {
  float* at = nullptr;
  int64_t row = 0;  // numbers from one to the next
  int64_t m = 0, n = 0, rows = 0, columns = 0;
};

/// The operands and the result of one run.
class TileOperands {
 public:
  /// The squares at these rows, columns and terms, as pack_square_of_a and _b lay them out; zeros
  /// behind the last. For all threads at once.
  virtual void pack_a(int64_t row, int64_t term, void* square) const = 0;
  virtual void pack_b(int64_t term, int64_t column, void* square) const = 0;
  /// Where rows (columns) are neighbours in memory, not terms.
  virtual bool a_along_rows() const = 0;
  virtual bool b_along_columns() const = 0;
  /// Of a product whose right operand is packed already: its squares, [columns][terms].
  virtual const char* packed_b() const { return nullptr; }

  /// What `finish` will read of memory, within so many steps.
  virtual Ahead ahead(const TileRows&, int64_t /*steps*/) const { return {}; }
  /// Sums are complete.
  virtual void finish(const TileRows&) const {}
  /// Writes them, a piece at a time from 0 on, while other tiles are multiplied.
  virtual int64_t pieces(const TileRows& sums) const = 0;
  virtual void write(const TileRows& sums, int64_t piece) const = 0;

 protected:
  ~TileOperands() = default;
};

/// Operands that are matrices as they lie, or of which the right one is in blocks of 32 x 32.
class TileMatrices : public TileOperands {
 public:
  void pack_a(int64_t row, int64_t term, void* square) const final {
    square_of_a_(a_, row, term, square);
  }
  void pack_b(int64_t term, int64_t column, void* square) const final {
    square_of_b_(b_, term, column, square);
  }
  bool a_along_rows() const final { return a_.row_stride == 1 && a_.col_stride != 1; }
  bool b_along_columns() const final { return b_.col_stride == 1; }
  const char* packed_b() const final {
    return packed_ ? static_cast<const char*>(b_.data) : nullptr;
  }

 protected:
  TileMatrices(const MatrixView& a, const MatrixView& b, bool packed)
      : a_(a),
        b_(b),
        packed_(packed),
        square_of_a_(pack_square_of_a(a)),
        square_of_b_(pack_square_of_b(b)) {}
  ~TileMatrices() = default;

 private:
  MatrixView a_, b_;
  bool packed_;
  PackSquare square_of_a_, square_of_b_;
};

/// sums[m, n] = a[m, k] b[k, n], in f32. They do not depend on the number of threads.
class TileMultiply {
 public:
  struct Sizes {
    int64_t m = 0, n = 0, k = 0;
    bool packed = false;     // TileOperands::packed_b
    int64_t together = 0;    // squares side by side, TileRows::columns; 0: any number
    bool long_rows = false;  // then as many as there can be
  };
  explicit TileMultiply(const Sizes& sizes);

  static constexpr int64_t kLeast = 32;  // rows, columns and terms that it is worth
  int64_t workspace_bytes() const;
  void run(const TileOperands& operands, void* workspace) const;

 private:
  struct Run;
  void pack_a(const Run& r) const;
  void multiply_all(const Run& r) const;
  void multiply_part(const Run& r, char* panel, int64_t i_begin, int64_t i_end, int64_t j_begin,
                     int64_t j_end) const;

  Sizes s_;
  int64_t threads_;
  int64_t group_;                     // squares side by side that stay together
  int64_t nc_ = 0, mc_ = 0, kc_ = 0;  // columns, rows and terms at a time
  int64_t across_ = 0, down_ = 0,
          together_ = 0;  // squares: of a panel, rows by it, written together
  int64_t bytes_a_ = 0, bytes_sums_ = 0;
  int64_t bytes_panel_ = 0, bytes_rows_ = 0;  // of a thread
};

}  // namespace shardrun::cpu
