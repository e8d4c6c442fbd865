// LocalChanges: what a plan would cost if one node ran otherwise and all else stayed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "graph/plan.h"
#include "planner/reshard/reshard_table.h"
#include "planner/rules/rule_file.h"
#include "planner/space/strategy.h"

namespace shardrun {

/// Prices single changes of a plan by the planner's own costs: the node's kernel, and the
/// reshardings of what it reads and makes. Where a result replaces something that persists (an
/// update) and lies as it, that follows, and is redistributed so to its readers.
class LocalChanges {
 public:
  LocalChanges(const Graph& graph, const Plan& plan, const Cluster& cluster);

  struct Change {
    double seconds = 0;  // of the step, all its micro-batches, more than now
    int64_t bytes = 0;   // of what persists on a rank, more than now
    NodePlan node;
  };
  /// The cheapest of a node's strategies that `wanted` accepts; nullopt if it accepts none.
  std::optional<Change> cheapest(NodeId node, const std::function<bool(const NodePlan&)>& wanted);

  /// What it costs if a value lies so: its maker's cheapest, or, of what no node makes, what its
  /// readers then move. nullopt: its maker has no way to leave it so.
  std::optional<Change> lies_as(ValueId value, const Sharding& sharding);

  /// The node that makes a value, or that makes what replaces it after the step; -1: none does.
  NodeId maker(ValueId value) const;
  /// Which of its results that is.
  size_t result_of(ValueId value, NodeId maker) const;

  /// The cheapest changes of a value's Sharding, one for each that its maker can leave it in, the
  /// cheapest first; the present one is not among them.
  std::vector<std::pair<Sharding, Change>> others(ValueId value);

 private:
  const std::vector<Strategy>& strategies(NodeId node);
  double redistribute(ValueId value, const Sharding& made, NodeId changed, const NodePlan& plan,
                      const Sharding* held_as = nullptr);
  Change price(NodeId node, const Strategy& strategy);
  bool moves_along(ValueId held) const;
  int64_t held_bytes(ValueId value, const Sharding& sharding) const;

  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  RuleCache rules_{rule_file_path()};
  ReshardTimes times_;
  std::vector<SumPrice> sum_prices_;
  std::map<ValueId, ValueId> replaces_;  // an update -> what it replaces
  std::map<ValueId, std::vector<std::pair<NodeId, size_t>>> readers_;  // nodes and operands
  std::vector<bool> reported_;  // outputs and metrics end up whole
  std::map<NodeId, std::vector<Strategy>> strategies_;
};

}  // namespace shardrun
