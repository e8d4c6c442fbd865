// Sums over the rows of a matrix, in chunks of rows that are then added in order.
#pragma once

#include <algorithm>

#include "kernels/cuda/own/team.h"

namespace shardrun::cuda {

/// How [rows, cols] falls into chunks: 8192 rows of which `groups` = 96 threads do one together are
/// 1024 chunks of 8.
struct Chunks {
  int64_t rows, each, count;

  static Chunks of(int64_t rows, int64_t groups) {
    constexpr int64_t kThreads = 1 << 17, kLeastRows = 8;  // that keep a GPU busy; worth a sum
    const int64_t wanted = std::max<int64_t>(kThreads / std::max<int64_t>(groups, 1), 1);
    const int64_t each = std::max((rows + wanted - 1) / wanted, kLeastRows);
    return {rows, each, (rows + each - 1) / each};
  }
  SR_HOST_DEVICE int64_t begin(int64_t chunk) const { return chunk * each; }
  SR_HOST_DEVICE int64_t end(int64_t chunk) const {
    const int64_t last = (chunk + 1) * each;
    return last < rows ? last : rows;
  }
};

/// A row for each column: its sum over chunks, V and stored as T.
template <class V, class T>
struct SumChunks {
  const V* sums;  // [chunks, cols]
  T* to;
  int64_t cols, chunks;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t c) const {
    V sum = 0;
    for (int64_t k = team.rank(); k < chunks; k += team.size()) sum += sums[k * cols + c];
    sum = team.sum(sum);
    if (team.rank() == 0) assign(to[c], sum);
  }
};

}  // namespace shardrun::cuda
