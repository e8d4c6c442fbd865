// ShardCombine: finds how an op can be cut by cutting it (papers: MetaDist, Algorithm 1,
// section 3.3).
//
// The op's reference kernel runs on small operands; candidates cut some operand dims (or split some
// operands' values), run the shards, and look how the local results combine. A candidate counts
// only with evidence: float64 data, several seeds (one all negative), 2 and 3 shards, two sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/node_plan.h"
#include "graph/op_def.h"
#include "graph/sharding.h"

namespace shardrun {

/// How one operand or result lies along one mesh axis. A cut value lies in shards before and after
/// the node; a window or blocks say what a rank takes or makes of it meanwhile (graph/node_plan.h).
struct Placement {
  enum class Kind { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                       // shard
  ReduceOp op = ReduceOp::sum;       // partial, and of rows of a result
  std::optional<HaloWindow> window;  // shard, of the first dim of the option that is cut plainly
  std::vector<int> blocks;  // shard, results only: the operands whose shards follow each other
  int rows_by = -1;         // shard: the operand whose numbers name its rows; -1: nothing does
  static Placement shard(int dim) { return {Kind::shard, dim, ReduceOp::sum, {}, {}}; }
  static Placement partial(ReduceOp op) { return {Kind::partial, 0, op, {}, {}}; }
  static Placement windows(int dim, HaloWindow window) {
    return {Kind::shard, dim, ReduceOp::sum, window, {}};
  }
  static Placement in_blocks(int dim, std::vector<int> operands) {
    return {Kind::shard, dim, ReduceOp::sum, {}, std::move(operands)};
  }
  static Placement rows_named(int dim, int by, ReduceOp op) {
    return {Kind::shard, dim, op, {}, {}, by};
  }
  bool is_shard() const { return kind == Kind::shard && !window && blocks.empty() && rows_by < 0; }
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

/// What was found for an op. matmul "mk,kn->mn" has the options
///   [S0, -] -> S0     [-, S1] -> S1     [S1, S0] -> partial(sum)
///   [P, -] -> P       [-, P] -> P       (partial operands pass through linear ops)
/// and a convolution with kernel 3 and padding 1, among others,
///   [S2{halo 1,1}, -] -> S2             an operand's row above and below is needed, too
///   [S2, -] -> S2{add 1,1}              or: rows of the result are made twice and added
/// and a concatenation along dim 0 [S0, S0] -> S0{block 2}.
struct SpmdRule {
  struct Option {
    std::vector<Placement> in, out;
    /// 0: any number of parts. Else the number of parts of the cut dim, over all mesh axes that cut
    /// it, must divide this: [6, 4] reshaped to [24] is cut along dim 0 into 2, 3 or 6 parts,
    /// never 4.
    int64_t divisor = 0;
    friend auto operator<=>(const Option&, const Option&) = default;
  };
  std::vector<Option> options;  // the all-replicated option is implied, not listed
  int kernel_runs = 0;          // spent on finding it
  /// Were options judged by the sizes of the node itself, too? Else another node with its rule_key
  /// has this rule, whatever its sizes.
  bool by_sizes = false;
};
std::string to_string(const SpmdRule::Option& option);  // "[S0, -] -> [S0]", "[S1, S0] -> [P(sum)]"

/// What a candidate must stand before it counts as a rule. The default is what is used; anything
/// less is fooled by some op, which the tests show.
struct Evidence {
  enum class Data {
    mixed,     // both signs
    negative,  // a maximum that starts at 0 and a sum of nothing show here
    positive,  // sqrt and log are not NaN everywhere
    grid,      // few whole numbers: comparisons see ties
    wide,      // beyond every number among the attributes: clip and thresholds do something
    spread,    // from 1e-4 to 1e4: thresholds that a user's kernel has within it show
    zeros,     // proves nothing: sums of zeros are zero. For tests
  };
  std::vector<Data> data = {Data::mixed, Data::negative, Data::positive, Data::grid, Data::wide};
  std::vector<int64_t> shards = {2, 3};
  /// Also, where shards' attributes depend on their place: 11 rows in 2 or 3 are cut at even ones
  /// alone, and windows of two rows with a stride of two are never cut through.
  std::vector<int64_t> shards_by_place = {4, 5};
  std::vector<int> size_sets = {0, 1};  // which of the two sets of small sizes
  double tolerance = 1e-9;              // relative, float64
};

/// Runs ShardCombine for one node. Only Reshape's rule is derived instead. An op whose reference
/// kernel cannot run even on the original shapes has a rule without options: it is replicated.
SpmdRule discover(const Node& node, std::span<const TensorType> in, const Evidence& evidence = {});

/// Reshape's rule: dims that start a group of factors of both shapes map to each other.
/// [8, 16, 12] -> [128, 3, 4] has the groups {8, 16 | 128} and {12 | 3, 4}: S0 -> S0 where the
/// parts divide 8, S2 -> S1 where they divide 3.
SpmdRule reshape_rule(const Shape& from, const Shape& to);

class RuleFile;

/// Rules by op, attributes and shape class (which dims are 1, which are equal).
class RuleCache {
 public:
  /// Who may write what was found to the file: of the ranks of a job, one.
  enum class Keep { read_and_write, read_only };
  /// Of this process alone.
  RuleCache();
  /// With those of a file (planner/rules/rule_file.h), which the destructor writes.
  explicit RuleCache(const std::string& file, Keep keep = Keep::read_and_write);
  ~RuleCache();
  RuleCache(const RuleCache&) = delete;
  RuleCache& operator=(const RuleCache&) = delete;

  const SpmdRule& rule(const Node& node, std::span<const TensorType> in);
  int kernel_runs() const { return kernel_runs_; }
  int distinct_rules() const { return static_cast<int>(rules_.size()); }
  int kept_rules() const { return kept_rules_; }  // of them, those that the file had

  /// Called before a rule is searched for, with the op.
  std::function<void(const std::string& op)> on_search;

 private:
  std::map<std::string, SpmdRule> rules_;
  std::unique_ptr<RuleFile> file_;
  Keep keep_ = Keep::read_only;
  int kernel_runs_ = 0, kept_rules_ = 0;
};

/// The cache's key: two nodes with one key have one rule. Built from what discovery would run (op,
/// attributes and operand types after shrinking), so sizes count only where they are 1 or equal.
std::string rule_key(const Node& node, std::span<const TensorType> in);

}  // namespace shardrun
