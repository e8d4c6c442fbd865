// Nodes that the optimiser of PyTorch's newer exporter takes out, or computes ahead with other
// numbers, though the calls that it notes with other nodes show that they were there.
#pragma once

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// Gives torch.hamming_window() its numbers, where the optimiser computed it by the operator's
/// definition, which has others: an initialiser that holds the window takes them. Throws
/// invalid_input for one that was computed from a window.
void restore_hamming_windows(ModelFile& model, const std::vector<FlatNode>& nodes,
                             ImportReport& report);

/// Puts back
///   - the dropout of an attention, between its softmax and its last product; where its nodes are
///     not known, a note says so;
///   - a detach() that a call names as its argument and no node makes, in front of what the call's
///     nodes read instead. Throws invalid_input where that is not clear;
///   - random numbers that were merged with others, being drawn from one distribution in one shape.
///     Throws invalid_input where what is computed from them was merged, too;
///   - of the older exporter, which notes no calls, the padding_idx of an embedding whose table has
///     one row of zeros.
/// Notes where an epsilon was taken for 0: calls show the sum, but not the number. Notes where a
/// clone() is gone, in front of which a detach() may have been.
void restore_lost_nodes(const ModelFile& model, std::vector<FlatNode>& nodes, ImportReport& report);

}  // namespace shardrun::importer
