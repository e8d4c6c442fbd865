// Weight roles: which initialisers train, which are running statistics, and which stay as they are.
#pragma once

#include "graph/onnx/weights/deciding.h"

namespace shardrun::importer {

/// The initialisers that batch normalisations by the batch's statistics keep as running averages.
/// For an instance normalisation PyTorch's older exporter repeats them for each sample.
void find_statistics(Deciding& d);

/// Decides on one initialiser. `reached`: what the gradient of the loss reaches. Throws
/// invalid_input for one that would train wrongly.
void decide_role(Deciding& d, const std::string& name, const std::set<std::string>& reached);

/// Applies --train, --train-only and --freeze.
void apply_patterns(Deciding& d, const std::string& name);

}  // namespace shardrun::importer
