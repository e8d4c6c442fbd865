// Roles of a training Graph's values, from its structure alone.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// Per value: does it depend on the batch?
std::vector<bool> depends_on_batch(const Graph& graph);

/// Per value: is it a parameter, or computed in the micro phase from parameters and constants alone
/// (a cast or transposed weight)?
std::vector<bool> made_of_weights(const Graph& graph);

}  // namespace shardrun
