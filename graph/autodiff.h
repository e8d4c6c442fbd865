// Autodiff: appends the backward pass to a Graph.
#pragma once

#include "graph/op_def.h"

namespace shardrun {

/// What sums of gradients are called, before the name of their value.
inline constexpr const char* kGradientPrefix = "grad/";

/// Appends nodes that compute d(loss)/d(v) for each v in `wrt`; kNoValue where the loss does not
/// depend on v. `loss` must be a floating scalar. Throws unsupported, naming the node, where a
/// wanted gradient would flow through an op that has none.
std::vector<ValueId> differentiate(Graph& graph, ValueId loss, std::span<const ValueId> wrt);

}  // namespace shardrun
