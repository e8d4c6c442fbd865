// Order of collectives: where among a Program's steps they stand, so that ranks and kernels seldom
// wait.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// Puts the steps of a Program as partitioned into the order of collectives_together or of
/// collectives_early: where ranks wait for each other resharding, exchanges aside, which stay with
/// their nodes. `most_bytes`: the Partition's, so that the order is the same on every rank.
void order_collectives(Program& program, Collectives run, const std::vector<int64_t>& most_bytes);

/// The order of `program`'s steps, the same on every rank, in which those that meet stand side by
/// side where nothing forbids that: between two such places every rank computes, some a little
/// longer than others, and at each place all wait for the last. A step that meets may stand
/// anywhere between what makes its operands and what reads its results; it moves to the nearest of
/// as few places as will do for all, if no more memory is needed at any time than at the fullest
/// time before. The other steps stay in their order, and none leaves its phase. `meets`: by step,
/// do ranks wait for each other there? `sums`: by step, the number of those that one call may make,
/// or -1: they go to as few of the places as will do for them. `bytes`: by buffer, the most that it
/// has on any rank; what a Program knows of its own rank alone is not looked at.
///
///   dw = conv_weight_grad(…), reduce_scatter(dw), dx = conv_data_grad(…),
///   s = batch_norm_reduce_grad(dx, …), all_reduce(s), batch_norm_grad(s, …)   becomes
///   dw = …, dx = …, s = …, reduce_scatter(dw), all_reduce(s), batch_norm_grad(s, …)
std::vector<size_t> collectives_together(const Program& program, const std::vector<bool>& meets,
                                         const std::vector<int>& sums,
                                         const std::vector<int64_t>& bytes);

/// The order in which collectives that overlap with kernels are asked for early: in front of up to
/// two kernels that wait for collectives asked for before, where the operands are made by then, if
/// no more memory is needed at any time than at the fullest time before. The rest as above.
///
///   a = all_gather(wa), x = matmul(x, a), b = all_gather(wb), x = matmul(x, b)   becomes
///   a = …, b = …, x = matmul(x, a), x = matmul(x, b)
std::vector<size_t> collectives_early(const Program& program, const std::vector<bool>& meets,
                                      const std::vector<int64_t>& bytes);

}  // namespace shardrun
