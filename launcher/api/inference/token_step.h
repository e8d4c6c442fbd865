// The step that takes one token: what sample runs, and `--step token` plans.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/tensor.h"
#include "graph/graph.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// Inputs besides the tokens that say nothing of a text, with the contents that data of tokens give
/// them: attention_mask, token_type_ids, position_ids. Those whose dims are not bound are left out.
std::map<std::string, Tensor> constant_inputs(const OnnxFile& model, const ModelOptions& options);

/// The step of a forward pass that takes one token of each sample, and keeps keys and values as
/// state (planner/token_steps.h). Throws invalid_input where they cannot be kept.
Graph token_step(const Graph& forward);
/// The last position that such a step can take; nothing for other graphs.
std::optional<int64_t> last_position(const Graph& step);

}  // namespace shardrun
