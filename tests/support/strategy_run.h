// Runs every rank's shard of one node under a NodePlan, one after the other in this thread, with
// the exchanges before and after it done by copying.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "graph/node_plan.h"
#include "planner/rules/discovery.h"
#include "planner/rules/trial.h"
#include "planner/space/strategy.h"

namespace shardrun::test {

/// What a rank makes of its shard of the operands.
using RunShard = std::function<std::vector<Tensor>(const Node&, std::span<const Tensor>)>;

/// Cuts the operands (partial ones into random summands), runs the shards, puts the results
/// together and compares them with `wanted`, in f64 to `tolerance` of the terms. Where rows are
/// named, a rank has its own and those, and garbage behind them. Returns what is wrong, or "".
std::string run_strategy(const SmallNode& small, std::span<const Tensor> operands,
                         std::span<const Tensor> wanted, const NodePlan& plan, const Mesh& mesh,
                         uint64_t seed, const RunShard& shard = run_reference,
                         double tolerance = 1e-9);

/// "[{a}, -] halo 1,1 in dim 0, [-] -> [{a}, -]"
std::string describe(const NodePlan& plan, const Mesh& mesh);

/// The node with every floating type made f64.
SmallNode in_f64(const std::string& op, const Attrs& attrs, std::span<const TensorType> in);

/// A sample of an op in f64, with operands and what the reference makes of them.
struct Sampled {
  SmallNode small;
  SpmdRule rule;
  size_t by_rows = 0;  // options of the rule whose numbers name rows
  std::vector<Tensor> operands, wanted;
};
/// `numbers`: operands have numbers of that floating type.
Sampled sampled(const OpDef& op, size_t sample, RuleCache& rules, uint64_t seed,
                DType numbers = DType::f64);

/// Every strategy that the planner may choose for it, the replicated one first.
std::vector<Strategy> strategies_of(const Sampled& sample, const Mesh& mesh,
                                    const Cluster& cluster);

}  // namespace shardrun::test
