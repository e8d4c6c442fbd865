// share_groups: a pass that groups rows once for all steps that group them by the same numbers.
#pragma once

#include "graph/program.h"

namespace shardrun {

/// In a Program that has not been placed yet, behind fuse_patterns: where several kernels of a
/// phase look for the rows that the same numbers name (runtime/program/ops/group_rows.h), as
/// gradients of gathers and softmaxes over segments do with a graph's edges in every layer, a step
/// in front of the first finds the groups for all.
///
///   gather_grad(a, rows) … segment_softmax(x, rows)   becomes
///   g = group_rows(rows), gather_grad{rearranged=1}(a, rows, g) … segment_softmax{…}(x, rows, g)
void share_groups(Program& program);

}  // namespace shardrun
