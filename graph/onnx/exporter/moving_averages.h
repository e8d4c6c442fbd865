// What forward() changes in files of PyTorch's older exporter, which does not say it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// Initialisers that are read for nothing but
///     an average  c * a + (1 - c) * x  with 0.5 < c < 1, in any order of factors and as lerp, or
///     a count     n + 1, of one integer n and any number,
/// and the values that each becomes one after the other: more than one where a module is called
/// several times. A parameter that is mixed in so would do as well with another
/// scale; a buffer of a module is nearly always one of these.
std::map<std::string, std::vector<std::string>> find_moving_averages(
    const ModelFile& model, const std::vector<FlatNode>& nodes);

}  // namespace shardrun::importer
