// Runs every rank's share of one node under a NodePlan, one after the other in this thread, with
// the exchanges before and after it done by copying.
#pragma once

#include <span>
#include <string>

#include "graph/node_plan.h"
#include "planner/trial.h"

namespace shardrun::testing {

/// Cuts the operands (partial ones into random summands), runs the shares with the reference
/// kernel, puts the results together and compares them with `wanted`, in f64 to 1e-9 of the terms.
/// Where rows are named, a rank has its own and those, and garbage behind them. Returns what is
/// wrong, or "".
std::string run_strategy(const SmallNode& small, std::span<const Tensor> operands,
                         std::span<const Tensor> wanted, const NodePlan& plan, const Mesh& mesh,
                         uint64_t seed);

/// "[{a}, -] halo 1,1 in dim 0, [-] -> [{a}, -]"
std::string describe(const NodePlan& plan, const Mesh& mesh);

/// The node with every floating type made f64.
SmallNode in_f64(const std::string& op, const Attrs& attrs, std::span<const TensorType> in);

}  // namespace shardrun::testing
