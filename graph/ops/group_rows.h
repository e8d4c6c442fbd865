// Rows that go to places by their numbers, grouped by place once for all who want them so.
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

  /// How kernels of this node want its operands' rows; none if they do not look for groups. With
  /// the attribute grouped=1 they take the groups as one more operand, the last.
  static std::optional<RowGroups> wanted_by(const Node& node, std::span<const TensorType> in);

  static int64_t elements(int64_t size, int64_t count) { return size + 2 + count; }
};

/// With one more operand, the groups?
inline bool is_grouped(const Node& node) { return node.attrs.i("grouped", 0) != 0; }

/// The operands without it.
inline std::span<const TensorType> ungrouped(const Node& node, std::span<const TensorType> in) {
  return is_grouped(node) ? in.first(in.size() - 1) : in;
}

}  // namespace shardrun
