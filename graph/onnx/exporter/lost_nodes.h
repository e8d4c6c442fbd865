// Nodes that the optimiser of PyTorch's newer exporter takes out, though the calls that it notes
// with other nodes show that they were there; and what the older one writes of sums by index and
// distances.
#pragma once

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// Puts back
///   - the dropout of an attention, between its softmax and its last product; where its nodes are
///     not known, a note says so;
///   - a detach() that a call names as its argument and no node makes, in front of what the call's
///     nodes read instead. Throws invalid_input where that is not clear;
///   - random numbers that were merged with others, being drawn from one distribution in one shape.
///     Throws invalid_input where what is computed from them was merged, too;
///   - of the older exporter, which notes no calls, the padding_idx of an embedding whose table has
///     one row of zeros.
/// Notes where an epsilon was taken for 0: calls show the sum, but not the number.
void restore_lost_nodes(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report);

/// index_put(places, values, accumulate=True) in files of the older exporter: a ScatterND onto
/// zeros without a reduction, which is added. It gets its reduction, for a place that comes twice
/// counts twice. Without accumulate=True PyTorch does not say what such a place holds.
void restore_added_elements(const ModelFile& model, std::vector<FlatNode>& nodes,
                            ImportReport& report);

/// cdist and pairwise_distance of the older exporter, (sum of (a - b)^p) ^ (1 / (p + eps)), which
/// nothing else is written as: it gets the p-th root, absolute values of
/// differences, and pairwise_distance's eps in these. A
/// distance of 0, as each row has to itself, gets a gradient of 0, as in PyTorch.
void restore_distances(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report);

}  // namespace shardrun::importer
