// AxisWay: how a node makes some indices of an axis alone, and from which of its operands' indices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/rules/discovery.h"

namespace shardrun {

/// Where an axis lies: dim `dim` is [outer, axis, rest] in row-major order. Tokens of [batch,
/// tokens, width] lie at {1, 1}; of the same reshaped to [batch * tokens, width] at {0, batch}.
struct AxisPlace {
  int dim = 0;
  int64_t outer = 1;
  friend auto operator<=>(const AxisPlace&, const AxisPlace&) = default;
};

/// A node's results at some indices of an axis are made of its operands at the same indices, and of
/// all of those operands that have no place here.
struct AxisWay {
  std::vector<std::optional<AxisPlace>> in, out;
};

/// The ways of a node whose `result` has an axis of `size` indices, at least 2, at `place`. They
/// are the cuts that discovery finds: an op that may be cut anywhere along a dim makes each index
/// by itself. Not those whose attributes would depend on which indices are made, as a causal mask's
/// do.
std::vector<AxisWay> ways_along(const Node& node, const std::vector<TensorType>& in,
                                const std::vector<TensorType>& out, size_t result, AxisPlace place,
                                int64_t size, RuleCache& rules);

/// The node's attributes when it makes `count` of `size` indices in this way.
Attrs attrs_along(const Node& node, const std::vector<TensorType>& in,
                  const std::vector<TensorType>& out, const AxisWay& way, int64_t size,
                  int64_t count);

}  // namespace shardrun
