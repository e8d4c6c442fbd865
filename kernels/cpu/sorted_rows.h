// Rows by where they go, for kernels that reduce all that goes to one place.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace shardrun::cpu {

inline int64_t index_at(const TensorView& indices, int64_t i) {
  return indices.type.dtype == DType::i64 ? indices.as<int64_t>()[i] : indices.as<int32_t>()[i];
}

/// The indices of row r stand in order[first[r], first[r + 1]): a counting sort.
struct SortedRows {
  int32_t *first, *order;

  static int64_t bytes(int64_t extent, int64_t count) { return (extent + 2 + count) * 4; }

  SortedRows(void* workspace, const TensorView& indices, int64_t offset, int64_t extent)
      : first(static_cast<int32_t*>(workspace)), order(first + extent + 2) {
    const int64_t count = indices.count();
    std::fill_n(first, extent + 2, 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = index_at(indices, i) - offset;
      if (row >= 0 && row < extent) ++first[row + 2];
    }
    for (int64_t r = 2; r <= extent + 1; ++r) first[r] += first[r - 1];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = index_at(indices, i) - offset;
      if (row >= 0 && row < extent) order[first[row + 1]++] = static_cast<int32_t>(i);
    }
  }
};

}  // namespace shardrun::cpu
