// Packed weights: weights kept in the layouts that kernels read, from step to step.
#pragma once

#include <functional>
#include <optional>

#include "program/ops/weight_layout.h"
#include "program/step_uses.h"

namespace shardrun {

/// In which layout a backend's kernel reads the weights (operand 1) of this call fastest; none if
/// as they lie.
using PackedWeights = std::function<std::optional<WeightLayout>(const KernelCall& call)>;

/// Keeps weights as the convolutions that read them want them, in a Program that has not been
/// placed yet, behind keep_casts: laid out in Program::setup, and by what writes them. That is
/// their update where `takes` says that it still runs by the same kernel then, else a step behind
/// what writes them. Of products, too, where several micro-batches read what an update writes.
///
///   y = conv(x, w) … w', … = adamw(w, …)   becomes
///   setup p = pack_weights(w);    y = conv{rearranged=1}(x, w, p) … w', …, p' = adamw_packed(w, …)
void keep_packed(Program& program, const PackedWeights& layout_of,
                 const RunsAlike& takes = nullptr);

}  // namespace shardrun
