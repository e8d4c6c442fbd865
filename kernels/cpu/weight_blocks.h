// Weights laid out in the blocks that oneDNN's convolutions read most, at memory's speed.
#pragma once

#include <optional>

#include "graph/ops/weight_layout.h"
#include "kernels/kernel.h"

namespace shardrun::cpu {

/// bf16 [O, C, …kernel] in a layout of one of two kinds: AcdB32a2b or 64a (forward) and
/// ABcd8a16b2a or BAcd (the gradient of the data).
class WeightBlocks {
 public:
  /// None for other layouts, for channels not in 32s, and for more than 9 taps.
  static std::optional<WeightBlocks> make(const TensorType& weights, const WeightLayout& layout);

  void run(const uint16_t* from, uint16_t* to) const;

  /// A panel is 32 channels out, which lie beside each other in `from`. On the calling thread, for
  /// a panel that is in cache.
  int64_t panels() const;
  void run_panel(int64_t panel, const uint16_t* from, uint16_t* to) const;

 private:
  void tile(int64_t o, int64_t c, const uint16_t* from, uint16_t* to) const;

  int64_t out_ = 0, in_ = 0, taps_ = 0;
  int64_t width_ = 0;      // forward: so many channels out in a block; else 0
  bool in_first_ = false;  // backward: channels in are the outermost dim
};

}  // namespace shardrun::cpu
