// Sorted rows: rows in the order of where they go, for kernels that reduce all that goes to one
// place.
#pragma once

#include <algorithm>

#include "graph/attrs.h"
#include "graph/rearranged.h"
#include "kernels/kernel.h"
#include "program/ops/group_rows.h"

namespace shardrun::cpu {

inline int64_t index_at(const TensorView& indices, int64_t i) {
  return indices.type.dtype == DType::i64 ? indices.as<int64_t>()[i] : indices.as<int32_t>()[i];
}

/// What group_rows makes (runtime/program/ops/group_rows.h).
struct SortedRows {
  const int32_t *first, *order;

  SortedRows(const int32_t* groups, int64_t size) : first(groups), order(groups + size + 2) {}

  /// A counting sort into `groups`.
  static void sort(const TensorView& numbers, int64_t offset, int64_t size, int32_t* groups) {
    int32_t *first = groups, *order = groups + size + 2;
    const int64_t count = numbers.count();
    const auto place = [&](int64_t i) {
      const int64_t row = index_at(numbers, i) - offset;
      return row >= 0 && row < size ? row : -1;
    };
    std::fill_n(first, size + 2, 0);
    for (int64_t i = 0; i < count; ++i) {
      if (const int64_t row = place(i); row >= 0) ++first[row + 2];
    }
    for (int64_t r = 2; r <= size + 1; ++r) first[r] += first[r - 1];
    for (int64_t i = 0; i < count; ++i) {
      if (const int64_t row = place(i); row >= 0) order[first[row + 1]++] = static_cast<int32_t>(i);
    }
    int32_t outside = first[size + 1] = first[size];
    for (int64_t i = 0; outside < count; ++i) {
      if (place(i) < 0) order[outside++] = static_cast<int32_t>(i);
    }
    first[size + 1] = static_cast<int32_t>(count);
  }
};

/// The groups that a call wants: given, or sorted in its workspace.
struct RowSort {
  RowGroups wanted;
  bool given;
  int64_t workspace_bytes;

  explicit RowSort(const KernelCall& call)
      : wanted(RowGroups::wanted_by(call.node, call.in).value()),
        given(rearranged_operands(call.node) > 0),
        workspace_bytes(given
                            ? 0
                            : 4 * RowGroups::elements(
                                      wanted.size, element_count(call.in[wanted.numbers].shape))) {}
  SortedRows of(const KernelArgs& args) const {
    if (given) return {args.in.back().as<int32_t>(), wanted.size};
    auto* groups = static_cast<int32_t*>(args.workspace);
    SortedRows::sort(args.in[wanted.numbers], wanted.offset, wanted.size, groups);
    return {groups, wanted.size};
  }
};

}  // namespace shardrun::cpu
