// A WeightMap from what import knows before it lowers nodes.
#pragma once

#include "graph/onnx/exporter/lost_weights.h"
#include "graph/onnx/flatten.h"
#include "graph/onnx/weights/weight_map.h"
#include "graph/onnx/weights/weights.h"

namespace shardrun::importer {

/// `nodes` as decide_weights left them; `tied`: of tied_names.
WeightMap make_weight_map(const ModelFile& model, const std::vector<FlatNode>& nodes,
                          const RestoredWeights& restored, const Weights& weights,
                          const std::map<std::string, std::string>& tied);

}  // namespace shardrun::importer
