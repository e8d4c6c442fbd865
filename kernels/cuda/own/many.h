// Many: any number of tensors that one launch goes through, in pieces, by a table of them that the
// call keeps in the device's memory (PreparedKernel::kept_bytes).
#pragma once

#include <cstring>
#include <vector>

#include "kernels/cuda/own/chunks.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// Elements of a tensor that a team does at a time, whole packs of them.
inline constexpr int64_t kPiece = 8192;
inline int64_t pieces_of(int64_t count) { return (count + kPiece - 1) / kPiece; }
/// Steps of a piece, of kWide<float> elements each.
inline constexpr int64_t kPieceWork = kPiece / kWide<float>;

/// Entries have int64_t count, their elements, and int32_t piece, the first of all pieces that is
/// theirs.
template <class Entry>
struct Many {
  const Entry* entries;
  int count;

  /// That of which piece `row` is.
  SR_HOST_DEVICE const Entry& of(int64_t row) const {
    int low = 0, high = count;  // low is no later than it, high is behind it
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (entries[middle].piece <= row ? low : high) = middle;
    }
    return entries[low];
  }
};

/// The table, for PreparedKernel::keep. An empty tensor's first piece is the next one's too, which
/// Many::of takes for the next one's.
template <class Entry>
std::vector<char> table_of(std::vector<Entry> entries) {
  int64_t pieces = 0;
  for (Entry& entry : entries) {
    entry.piece = static_cast<int32_t>(pieces);
    pieces += pieces_of(entry.count);
  }
  std::vector<char> table(entries.size() * sizeof(Entry));
  std::memcpy(table.data(), entries.data(), table.size());
  return table;
}
/// As it is kept.
template <class Entry>
Many<Entry> many(const KernelArgs& args, size_t count) {
  return {static_cast<const Entry*>(args.kept), static_cast<int>(count)};
}

/// Where piece `row` begins in its tensor, and how long it is.
template <class Entry>
SR_HOST_DEVICE int64_t piece_begin(const Entry& entry, int64_t row) {
  return (row - entry.piece) * kPiece;
}
template <class Entry>
SR_HOST_DEVICE int64_t piece_length(const Entry& entry, int64_t row) {
  const int64_t left = entry.count - piece_begin(entry, row);
  return left < kPiece ? left : kPiece;
}

/// Of pieces' sums, in their order, the sum.
template <class On>
void add_pieces(const KernelArgs& args, const float* sums, int64_t pieces, float* to) {
  On::rows(args, 1, pieces, SumChunks<float, float>{sums, to, 1, pieces}, "squares");
}

}  // namespace shardrun::cuda
