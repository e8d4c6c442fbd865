// Short rows, 16 at a time and turned, so that what is computed along a row needs no vector's
// parts.
#pragma once

#include "kernels/cpu/lane_functions.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {

/// Longer rows are computed one by one.
inline constexpr int64_t kMostTileColumns = 80;
/// Are exponentials of rows faster so? Not where vectors of f32 have no parts anyway.
inline bool in_tiles(int64_t columns, DType dtype) {
  const bool whole = columns % kLanes == 0 && columns > 2 * kLanes;
  return columns <= kMostTileColumns && !(dtype == DType::f32 && whole);
}

/// Number c of 16 rows is one vector. A row's numbers do not depend on the other rows.
class RowTile {
 public:
  explicit RowTile(int64_t columns) : columns_(columns) {}

  int64_t columns() const { return columns_; }
  Lanes& operator[](int64_t c) { return turned_[c]; }
  const Lanes& operator[](int64_t c) const { return turned_[c]; }

  /// Rows [row, row + n) of x, n <= 16; as many zeros where there are fewer.
  void load(const TensorView& x, int64_t row, int64_t n) {
    const int64_t count = n * columns_;
    const float* from = floats(x, row * columns_, count, rows_);
    if (from != rows_) std::copy_n(from, count, rows_);
    std::fill(rows_ + count, rows_ + kLanes * (columns_ + 1), 0.0f);
    Units tile[kLanes];
    for (int64_t c = 0; c < columns_; c += kLanes) {
      for (int64_t r = 0; r < kLanes; ++r)
        tile[r] = load_vector<Units>(rows_ + std::min(r * columns_ + c, kLanes * columns_));
      transpose(tile);
      std::memcpy(turned_ + c, tile, sizeof(tile));
    }
  }

  /// To rows [row, row + n) of y, which may lie where x did.
  void store(const TensorView& y, int64_t row, int64_t n) {
    Units tile[kLanes];
    // What sticks out of a row's end is overwritten by the next one's beginning.
    for (int64_t c = (columns_ - 1) / kLanes * kLanes; c >= 0; c -= kLanes) {
      std::memcpy(tile, turned_ + c, sizeof(tile));
      transpose(tile);
      for (int64_t r = 0; r < kLanes; ++r)
        std::memcpy(rows_ + r * columns_ + c, &tile[r], sizeof(tile[r]));
    }
    const int64_t count = n * columns_;
    put(y, row * columns_, count, rows_);
    if (y.type.dtype == DType::f32) std::copy_n(rows_, count, y.as<float>() + row * columns_);
  }

  /// Makes each number x exp(x - shift).
  void exponentiate(const Lanes& shift) { exponentiate(shift, reinterpret_cast<float*>(turned_)); }
  /// The sums of these of each row.
  Lanes sum_of_exponentials(const Lanes& shift) {
    exponentiate(shift, rows_);
    Lanes sum{};
    for (int64_t c = 0; c < columns_; ++c) sum += load_lanes(rows_ + c * kLanes);
    return sum;
  }

 private:
  void exponentiate(const Lanes& shift, float* to) const {
    for (int64_t c = 0; c < columns_; ++c) store_lanes(to + c * kLanes, turned_[c] - shift);
#pragma omp simd
    for (int64_t i = 0; i < kLanes * columns_; ++i) to[i] = exp(to[i]);
  }

  int64_t columns_;
  Lanes turned_[kMostTileColumns];
  alignas(64) float rows_[kLanes * (kMostTileColumns + 1)];
};

/// A number of each of n rows, as it lies in memory.
inline Lanes get_each(const float* from, int64_t n) {
  Lanes x{};
  for (int64_t i = 0; i < n; ++i) x[i] = from[i];
  return x;
}
inline void put_each(float* to, const Lanes& x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = x[i];
}

/// Calls f(row, n) for each 16 rows of [begin, end), and for the rest.
template <class F>
void for_tiles(int64_t begin, int64_t end, F&& f) {
  for (int64_t row = begin; row < end; row += kLanes) f(row, std::min(kLanes, end - row));
}

/// The largest number of each row; what no comparison says is greater, such as NaN, is not.
inline Lanes top_of(const RowTile& x) {
  Lanes top = Lanes{} - std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < x.columns(); ++c) top = x[c] > top ? x[c] : top;
  return top;
}

}  // namespace shardrun::cpu
