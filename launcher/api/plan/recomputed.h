// What a plan computes again, in a sentence.
#pragma once

#include <string>

#include "plan/plan.h"

namespace shardrun {

/// "computed again in the backward pass: 12 gelu, 24 layer_norm: 36 nodes, +3.1 ms; kept, a rank
/// would need 1.9 GiB". "" where nothing is.
std::string recomputed_text(const Model::Impl& model, const TrainingPlan::Impl& plan);

}  // namespace shardrun
