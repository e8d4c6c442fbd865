// A model's inputs: which it has, and their types once symbolic dims have sizes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// Graph inputs that are not initialisers' defaults.
std::vector<const ::onnx::ValueInfoProto*> model_inputs(const ModelFile& model);

/// The name under which a dim without a size is bound; empty if it has one.
std::string dim_name(const ::onnx::ValueInfoProto& input, int axis);

/// The sizes of symbolic dims that options.dims and options.batch give. Throws invalid_input where
/// these name what no input has.
std::map<std::string, int64_t> bind_dims(const ModelFile& model, const ImportOptions& options);

/// Throws invalid_input for a dim that has no size.
TensorType input_type(const ::onnx::ValueInfoProto& input,
                      const std::map<std::string, int64_t>& dims);

}  // namespace shardrun::importer
