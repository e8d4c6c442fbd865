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

/// What values and nodes are to a training step.
struct StepRoles {
  std::vector<bool> of_batch, of_weights;  // values: depends_on_batch, made_of_weights
  std::vector<bool> forward;               // nodes that the loss depends on
  std::vector<bool> gradients;             // values made in the micro phase for the update
  std::vector<bool> updates, accumulates;  // nodes that make what replaces a held value
};
StepRoles step_roles(const Graph& graph);

}  // namespace shardrun
