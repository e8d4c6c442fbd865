// Weights laid out in the blocks that oneDNN's products and convolutions read most, at memory's
// speed.
#pragma once

#include <optional>

#include "kernels/cpu/products/pack.h"
#include "kernels/kernel.h"
#include "program/ops/weight_layout.h"

namespace shardrun::cpu {

/// bf16 weights in a layout of one of three kinds. [O, C, …kernel]: AcdB32a2b or 64a (forward) and
/// ABcd8a16b2a or BAcd (the gradient of the data), of channels in 32s and at most 9 taps. A matrix
/// [R, C], or one with more dims of 1: what matrix() gives.
class WeightBlocks {
 public:
  /// BlockLayout of a matrix, its rows the terms of the product or else its columns.
  static WeightLayout matrix(const BlockLayout& blocks, size_t rank, bool rows_are_terms);

  /// None for other layouts.
  static std::optional<WeightBlocks> make(const TensorType& weights, const WeightLayout& layout);

  void run(const uint16_t* from, uint16_t* to) const;

  /// A panel is 32 of the outermost dim, which are adjacent in `from`. On the calling
  /// thread, for a panel that is in cache.
  static constexpr int64_t kPanel = 32;
  int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  void run_panel(int64_t panel, const uint16_t* from, uint16_t* to) const;

 private:
  void pack(int64_t first, int64_t count, const uint16_t* from, uint16_t* to) const;
  void tile(int64_t o, int64_t c, const uint16_t* from, uint16_t* to) const;

  int64_t out_ = 0, in_ = 0, taps_ = 0;
  int64_t width_ = 0;      // forward: so many channels out in a block; else 0
  bool in_first_ = false;  // backward: channels in are the outermost dim
  std::optional<BlockLayout> matrix_;
  bool rows_are_terms_ = false;  // of matrix_
};

}  // namespace shardrun::cpu
