// The optimizer's steps of one rank's Program as one over all parameters.
#pragma once

#include <functional>

#include "graph/program.h"
#include "kernels/kernel.h"

namespace shardrun {

/// Does the backend run a step over many tensors by the kernel that runs one over `alone`, the
/// first of them? Null: it does.
using TakesMany = std::function<bool(const KernelCall& many, const KernelCall& alone)>;

/// Joins steps of a Program that has not been placed yet, behind join_steps and keep_casts
/// (planner/join_steps.h). Nothing lives longer by it.
///
///   s = reduce_sum_squares(g), t = reduce_sum_squares(h), n = add(s, t)   becomes
///   n = reduce_sum_squares(g, h)
///
/// where h is made if g is still there then, as a gradient is for its update; what else is added
/// among them is added once, behind it. And
///
///   w', m' = sgd(w, g, m, …), v', k' = sgd(v, h, k, …)                    becomes
///   w', m', v', k' = sgd(w, g, m, v, h, k, …)
///
/// where updates stand beside each other, have equal attributes but for weight_decay and copy, and
/// write what they read; of sums of squares that they make, where adds among them leave one of all.
void join_updates(Program& program, const TakesMany& takes = nullptr);

}  // namespace shardrun
