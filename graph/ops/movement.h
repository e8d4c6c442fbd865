// slice and pad: their OpDefs, and nodes that slice or pad one dim.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace shardrun {

std::vector<OpDef> slice_pad_ops();

/// x[start : end : step] along one dim; the others stay whole.
ValueId slice_dim(Graph& graph, ValueId x, size_t dim, int64_t start, int64_t end,
                  int64_t step = 1);
/// Zeros before and after along one dim.
ValueId pad_dim(Graph& graph, ValueId x, size_t dim, int64_t before, int64_t after);

}  // namespace shardrun
