// Nodes that the optimiser of PyTorch's newer exporter takes out, though the calls that it notes
// beside other nodes show that they were there.
#pragma once

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// Puts back
///   - the dropout of an attention, between its softmax and its last product.
/// What cannot be put back is noted.
void restore_lost_nodes(std::vector<FlatNode>& nodes, ImportReport& report);

}  // namespace shardrun::importer
