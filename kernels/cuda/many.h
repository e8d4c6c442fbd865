// Many tensors that one launch goes through, in pieces: a table of them is the kernel's parameter.
#pragma once

#include <vector>

#include "kernels/cuda/chunks.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// Elements of a tensor that a team does at a time, whole packs of them.
inline constexpr int64_t kPiece = 8192;
inline int64_t pieces_of(int64_t count) { return (count + kPiece - 1) / kPiece; }
/// Steps of a piece, of kWide<float> elements each.
inline constexpr int64_t kPieceWork = kPiece / kWide<float>;

/// A launch takes 32,764 bytes of parameters from compute capability 7.0 on; some are others than
/// the table. Of an optimizer's 88 bytes each they hold 369: GPT-2 124M's 148 parameters go in one
/// launch, GPT-2 1558M's 580 in two. A table in memory would take any number, but has to be copied
/// there in front of each launch.
inline constexpr int kParameterBytes = 32764, kOtherBytes = 256;

/// Entries have int64_t count, their elements, and int32_t piece, the launch's first that is
/// theirs.
template <class Entry, int kMost>
struct Many {
  Entry entries[kMost];
  int count = 0;

  /// That of which the launch's piece `row` is.
  SR_HOST_DEVICE const Entry& of(int64_t row) const {
    int low = 0, high = count;  // low is no later than it, high is behind it
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (entries[middle].piece <= row ? low : high) = middle;
    }
    return entries[low];
  }
};

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

/// Calls launch(many, pieces, before) for as many of `entries` as a launch takes: so many pieces,
/// after `before` of launches before. Nothing is launched for empty tensors.
template <class Entry, class Launch>
void in_launches(const std::vector<Entry>& entries, const Launch& launch) {
  constexpr int kMost = (kParameterBytes - kOtherBytes) / static_cast<int>(sizeof(Entry));
  constexpr int kFew = 4;  // what one parameter alone is launched with
  int64_t before = 0;
  for (size_t first = 0; first < entries.size();) {
    const auto fill = [&](auto& many) {
      int64_t pieces = 0;
      for (; first < entries.size() && many.count < static_cast<int>(std::size(many.entries));
           ++first) {
        if (entries[first].count == 0) continue;
        Entry& entry = many.entries[many.count++] = entries[first];
        entry.piece = static_cast<int32_t>(pieces);
        pieces += pieces_of(entry.count);
      }
      if (pieces > 0) launch(many, pieces, before);
      before += pieces;
    };
    if (entries.size() - first <= kFew) {
      Many<Entry, kFew> few;
      fill(few);
    } else {
      Many<Entry, kMost> many;
      fill(many);
    }
  }
}

/// Of pieces' sums, in their order, the sum.
template <class On>
void add_pieces(const KernelArgs& args, const float* sums, int64_t pieces, float* to) {
  On::rows(args, 1, pieces, SumChunks<float, float>{sums, to, 1, pieces}, "squares");
}

}  // namespace shardrun::cuda
