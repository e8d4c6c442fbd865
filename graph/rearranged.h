// Operands that repeat others in an order that kernels like better.
#pragma once

#include <span>

#include "graph/graph.h"

namespace shardrun {

/// So many operands, behind those of its op, hold what another one does, rearranged as the step's
/// kernel likes to read it: the attribute `rearranged`. Only steps of Programs have some
/// (runtime/program/ops). No rule of an op sees them.
size_t rearranged_operands(const Node& node);
/// The others.
std::span<const TensorType> own_operands(const Node& node, std::span<const TensorType> in);

}  // namespace shardrun
