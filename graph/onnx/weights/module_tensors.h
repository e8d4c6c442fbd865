// What a PyTorch module calls the numbers of an exported file, and how they lie there.
#pragma once

#include "graph/onnx/flatten.h"
#include "graph/onnx/weights/weight_map.h"
#include "graph/onnx/weights/weights.h"

namespace shardrun::importer {

/// Fills tensors, batch_counts, missing and has_module of `map`, whose values are there. `tied`: of
/// tied_names.
///
/// An export's signature lists the module's tensors. Without one they are the initialisers that
/// have names of a module's, the names that folded ones have lost, and those of tied weights.
void map_module(const ModelFile& model, const std::vector<FlatNode>& nodes, const Weights& weights,
                const std::map<std::string, std::string>& tied, WeightMap& map);

}  // namespace shardrun::importer
