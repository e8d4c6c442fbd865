// Seconds of a matrix product by the tiles that a GPU's multiprocessors make of its result.
#pragma once

#include "planner/cost/kernel_cost.h"

namespace shardrun {

/// Of the arithmetic alone, without the launch and the operands' way from memory. Where
/// `cluster.tiles` is not known, FLOPs at the rate of large products. Else each result is cut into
/// tiles, which at its edges are whole ones too, and each multiprocessor makes as many as there are
/// waves of them. A tile multiplies at the reached rate, or as fast as the cache brings operands,
/// for each step along k a column and a row of its size. Before that it waits for the first of
/// them, and then it writes itself out; that is once for as many tiles as fit in the registers that
/// the largest shape takes. Libraries also split k where tiles are few, and add up the parts. The
/// quickest way counts. Never less with more of anything (NVIDIA, Matrix Multiplication Background
/// User's Guide, sections 3 and 4, which has the effects and no formula).
///
///     A100 in bf16, 2.51 TFLOP/s of each multiprocessor: a result of 1024 x 1024 has 64 tiles of
///     128 x 128 for 108 of them. With k = 1024 each takes 2 * 128 * 128 * 1024 / 2.51e12 =
///     13.4 us, where all FLOPs at 271 TFLOP/s are 7.9 us.
double product_seconds(const MatmulWork& work, DType dtype, const Cluster& cluster);

}  // namespace shardrun
