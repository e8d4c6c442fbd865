// Weights that lie as kernels like to read them, from step to step.
#pragma once

#include <functional>
#include <optional>

#include "graph/program.h"

namespace shardrun {

/// How a backend's kernel lays out the weights (operand 1) of this call first each time: attributes
/// of pack_weights (graph/ops/conv.cc); none if it takes them as they lie.
using PackedWeights = std::function<std::optional<Attrs>(
    const Node& node, const std::vector<TensorType>& in, const std::vector<TensorType>& out)>;

/// Lays out weights once for all convolutions that read them, in a Program that has not been placed
/// yet, behind keep_casts: in Program::setup where no step writes them (validation, frozen
/// weights), and once more behind their update where all who read them run in each of several
/// micro-batches. A step of one micro-batch reads what it lays out once per update anyway: there
/// the kernel does it.
///
///   y = conv(x, w) … w', … = adamw(w, …)   becomes, of several micro-batches,
///   setup p = pack_weights(w);    y = conv{packed=1}(x, w, p) … w', … = adamw(w, …),
///   p' = pack_weights(w'), in its place
void keep_packed(Program& program, const PackedWeights& layout_of);

}  // namespace shardrun
