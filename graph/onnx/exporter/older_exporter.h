// What PyTorch's older exporter writes otherwise than the module computes, and only so.
#pragma once

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// Rewrites these nodes of files of the older exporter, and notes it in `report`:
///
/// - index_put(places, values, accumulate=True) is a ScatterND onto zeros without a reduction, and
///   index_add such a ScatterElements, which is added. They get their reduction, for a place that
///   comes twice counts twice. Where there is no sum PyTorch does not say what such a place holds.
/// - unfold(-1, size, step) is slices side by side along a dim that comes one place too late. It is
///   put where PyTorch has it.
/// - cdist and pairwise_distance are (sum of (a - b)^p) ^ (1 / (p + eps)). They get the p-th root,
///   absolute values of differences, and pairwise_distance's eps in these. A distance of 0, as each
///   row has to itself, gets a gradient of 0, as in PyTorch.
void restore_older(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report);

}  // namespace shardrun::importer
