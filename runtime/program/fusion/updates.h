// fuse_updates: the optimizer's steps of one rank's Program as one over all parameters.
#pragma once

#include "program/step_uses.h"

namespace shardrun {

/// Of a Program that has not been placed yet, behind fuse_patterns and keep_casts. Nothing lives
/// longer by it.
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
/// where updates follow each other, have equal attributes but for weight_decay and copy, and
/// write what they read.
void fuse_updates(Program& program, const RunsAlike& takes = nullptr);

}  // namespace shardrun
