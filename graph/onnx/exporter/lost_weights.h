// Weights that the optimiser of PyTorch's newer exporter takes out or merges: the export's
// signature still lists them, and calls still name them.
#pragma once

#include <functional>

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// An input of the main graph's nodes, as they are in the file, that reads another tensor now.
struct ChangedInput {
  int64_t node = 0;
  int input = 0;
  std::string tensor;
};

struct RestoredWeights {
  std::vector<StoredTensor> tensors;  // initialisers besides the file's
  std::vector<ChangedInput> inputs;   // that read these
  /// Initialisers that are one tensor for each of their readers: calls name them so.
  std::set<std::string> shared;
  bool has_folded_norms = false;  // of which a note tells
};

/// Gives weights back to the nodes that were called with them:
///   - a bias of zeros that was removed from a convolution or a Gemm;
///   - a weight that was merged with another of equal numbers (not with Shared::keep).
/// Notes what it did, and which parameters no node reads. Throws invalid_input, with the way out,
/// for what is lost: a batch normalisation that was folded into its neighbour, unless it was called
/// in evaluation mode and so is to stay; and parameters that are gone together with steps, unless
/// `is_left_out` says that they are not to train. `tied`: tied_names(); those are not gone.
RestoredWeights restore_lost_weights(const ModelFile& model, std::vector<FlatNode>& nodes,
                                     const std::map<std::string, std::string>& tied,
                                     const ImportOptions& options,
                                     const std::function<bool(const std::string&)>& is_left_out,
                                     ImportReport& report);

}  // namespace shardrun::importer
