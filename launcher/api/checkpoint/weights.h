// Weights that a model begins with, from wherever they are.
#pragma once

#include <string>
#include <vector>

#include "graph/onnx/weights/given_weights.h"

namespace shardrun {

/// The path, or of a folder of checkpoints that of its newest: more may come.
std::string weights_meant(const std::string& path);

/// ModelOptions::weights: a safetensors file, an index of several or a folder of them, an ONNX
/// model, a checkpoint. Reads names, types and places, no
/// numbers, but for `verified`: then all of a checkpoint's, to see that they are what was written.
/// Throws invalid_input.
GivenWeights find_weights(const std::string& path, const std::vector<std::string>& except,
                          bool verified);

/// The files that it reads.
std::vector<std::string> files_of_weights(const std::string& path);

}  // namespace shardrun
