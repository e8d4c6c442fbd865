// Rows that go to places by their numbers: added in one step, or grouped by place once for all who
// want them so.
#pragma once

#include <optional>
#include <span>

#include "graph/graph.h"

namespace shardrun {

/// Numbers [E] from `offset` on, grouped by `size` places, as i32[size + 2 + E], what
///
///   group_rows(numbers){size, offset} -> groups
///
/// makes: first[size + 2] and order[E]. Place r has the rows order[first[r], first[r + 1]), in
/// their order; those whose number is outside stand behind all, as place `size`. Numbers 2, 0, 9, 2
/// for 3 places: first 0, 1, 1, 3, 4 and order 1, 0, 3, 2.
struct RowGroups {
  size_t numbers = 0;  // the operand
  int64_t size = 0, offset = 0;

  /// How kernels of this node want its operands' rows; none if they do not look for groups. They
  /// take the groups as a rearranged operand (graph/rearranged.h).
  static std::optional<RowGroups> wanted_by(const Node& node, std::span<const TensorType> in);

  static int64_t elements(int64_t size, int64_t count) { return size + 2 + count; }
};

}  // namespace shardrun
