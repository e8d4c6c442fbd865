// WeightLayout: the order in which a kernel likes to read weights.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// Dims in `order`, the outermost first, and within them blocks[i] of dim of[i], the innermost
/// last; what a block lacks at the end of a dim is zero. Written as oneDNN's tags are: a letter for
/// each dim in its order, a capital where there are blocks of it, and behind them these. w [O, C,
/// h, w] in AcdB32a2b is [O / 32][h][w][C / 2][32][2].
struct WeightLayout {
  std::vector<int64_t> order, blocks, of;

  /// Throws invalid_input: not a layout.
  static WeightLayout parse(const std::string& tag);
  std::string to_string() const;

  /// Blocks along each dim, elements where it has none. Throws invalid_input: other dims.
  Shape counts(const Shape& dims) const;
  /// What weights of this type are when laid out: [all elements, zeros included].
  TensorType type(const TensorType& weights) const;
  /// Where the element at `at` is.
  int64_t place(const Shape& dims, Shape at) const;

  bool operator==(const WeightLayout&) const = default;
};

/// "AcdB32a2b BAcd8a16b2a": the attribute `layouts` of an update.
std::vector<WeightLayout> parse_layouts(const std::string& tags);

}  // namespace shardrun
