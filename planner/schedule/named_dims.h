// NamedDims: colours by what they are to a training step: its samples, its sequence, its blocks.
#pragma once

#include <set>

#include "planner/schedule/colours.h"
#include "planner/schedule/roles.h"

namespace shardrun {

/// Colours, found from the graph's structure (what depends on the batch, what updates what, which
/// dims are cut together), never from names.
struct NamedDims {
  std::set<int> batch;     // first dims of batch inputs
  std::set<int> sample;    // their other dims
  std::set<int> stream;    // of what passes between blocks, along residual connections
  std::set<int> inner;     // of weights, inside a block: heads, the MLP's hidden dim, vocabulary
  std::set<int> sequence;  // what batch inputs and the stream have in common besides the samples
};

/// Of them batch and sample.
NamedDims find_batch_dims(const Graph& graph, const Colours& colours);
/// All.
NamedDims find_named_dims(const Graph& graph, const Colours& colours, const RuleOf& rule_of,
                          const StepRoles& roles);

}  // namespace shardrun
