// Import of a file that is open: what OnnxFile's functions share.
#pragma once

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/import.h"
#include "graph/onnx/weights/weight_map.h"

namespace shardrun::importer {

/// As OnnxFile::import. Takes the nodes out of `model`.
Graph import_model(ModelFile& model, const ImportOptions& options, ImportReport& report);

/// As OnnxFile::map_weights, in the same way.
WeightMap map_model(ModelFile& model, const ImportOptions& options);

}  // namespace shardrun::importer
