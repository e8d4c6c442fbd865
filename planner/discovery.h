// ShardCombine: finds how an op can be cut by cutting it (papers: MetaDist, Algorithm 1, section 3.3).
//
// The op's reference kernel runs on small operands; candidates cut some operand dims, run the
// pieces, and look how the local results combine. A candidate counts only with evidence: float64
// data, several seeds (one all negative), 2 and 3 shards, two sizes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/op_def.h"
#include "graph/sharding.h"

namespace shardrun {

/// How one operand or result lies along one mesh axis.
struct Placement {
  enum class Kind { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                     // shard
  ReduceOp op = ReduceOp::sum;     // partial
  static Placement shard(int dim) { return {Kind::shard, dim, ReduceOp::sum}; }
  static Placement partial(ReduceOp op) { return {Kind::partial, 0, op}; }
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

/// What was found for an op. matmul "mk,kn->mn" has the options
///   [S0, -] -> S0     [-, S1] -> S1     [S1, S0] -> partial(sum)
///   [P, -] -> P       [-, P] -> P       (partial operands pass through linear ops)
struct SpmdRule {
  struct Option {
    std::vector<Placement> in, out;
    friend auto operator<=>(const Option&, const Option&) = default;
  };
  std::vector<Option> options;   // the all-replicated option is implied, not listed
  int kernel_runs = 0;           // spent on finding it
};
std::string to_string(const SpmdRule::Option& option);  // "[S0, -] -> [S0]"

/// Runs ShardCombine for one node. Only Reshape's rule is derived instead.
SpmdRule discover(const Node& node, std::span<const TensorType> in);

/// Rules by op, attributes and shape class (which dims are 1, which are equal), in memory and
/// optionally in a file between runs.
class RuleCache {
 public:
  const SpmdRule& rule(const Node& node, std::span<const TensorType> in);
  int kernel_runs() const { return kernel_runs_; }
  int distinct_rules() const { return static_cast<int>(rules_.size()); }

 private:
  std::map<std::string, SpmdRule> rules_;
  int kernel_runs_ = 0;
};

/// The cache's key: two nodes with one key have one rule.
std::string rule_key(const Node& node, std::span<const TensorType> in);

}  // namespace shardrun
