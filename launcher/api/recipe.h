// A model's own recipe: flags of `shardrun train` in its file's metadata.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/onnx/onnx_file.h"

namespace shardrun {

/// Flags and their values, "" for a flag without.
using Recipe = std::vector<std::pair<std::string, std::string>>;

/// `where` it stands, for errors. Throws invalid_input: no flag, or one that a model may not give.
Recipe parse_recipe(const std::string& text, const std::string& where);
/// Of a model's file; empty if it has none, or is no model. Throws invalid_input, also for one that
/// is longer than a MiB.
Recipe recipe_of(const OnnxFile& file);

}  // namespace shardrun
