// Strategy: one way to run one node on the whole mesh, all axes jointly.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/cost/cluster.h"
#include "planner/rules/discovery.h"

namespace shardrun {

struct Strategy {
  std::vector<Sharding> in, out;
  double seconds = 0;           // the slowest rank's local kernel, and its exchanges
  double exchange_seconds = 0;  // of them
  std::vector<Halo> halos = {};
  std::vector<Blocks> blocks = {};
  std::vector<Rows> rows = {};

  NodePlan node_plan() const { return {in, out, halos, blocks, rows}; }
};

/// Does every rank get something of a dim that `axes` cut one after the other? 5 over axes of 2 and
/// 2: 3, 2, then 2, 1, 1, 1.
bool leaves_none_empty(int64_t size, const Axes& axes, const Mesh& mesh);

/// The node with an option of its rule along each mesh axis (null: replicated), in mesh order.
/// nullopt if the options cannot stand together, or if a rank is left without a part of a dim
/// (unless `leave_empty`).
std::optional<NodePlan> composed(const Node& node, std::span<const TensorType> in,
                                 std::span<const TensorType> out,
                                 const std::vector<const SpmdRule::Option*>& along,
                                 const Mesh& mesh, bool leave_empty);

/// Can every rank run its shard of it? Halos agree, parts are of one kind, a user's shape rule
/// takes what is left of each shape, and (unless `leave_empty`) no rank is left without a part of a
/// dim.
bool can_run(const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
             const NodePlan& plan, const Mesh& mesh, bool leave_empty);

/// A node's plan with its predicted seconds. `sharers`: nodes that share the routing of its rows.
Strategy priced(const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
                NodePlan plan, int64_t sharers, const Mesh& mesh, const Cluster& cluster);

/// Counts on: the next choice, each below its count, the last turning fastest. False after the
/// last, and all are 0 again.
bool next_choice(std::vector<size_t>& chosen, const std::vector<size_t>& counts);

/// Every combination of one option (or replication) per mesh axis, less those that leave a rank
/// without a part of a dim (unless `leave_empty`) and those that another strategy with the same in
/// and out beats (a halo exchange before the node or a halo add after it, say). What is exchanged
/// may be in empty shards: the rows that a rank needs come from others. Axes that cut one dim stand
/// in mesh order. Deterministic order; the first is all replicated. `count_rows` sets the bounds of
/// a plan's rows and says how many nodes share its routing; needed where the rule has options with
/// rows (planner/rules/numbered_rows.h). `may_take`: which options (nullptr: replication) along an
/// axis; null: all.
std::vector<Strategy> enumerate_strategies(
    const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
    const SpmdRule& rule, const Mesh& mesh, const Cluster& cluster, bool leave_empty = false,
    const std::function<int64_t(NodePlan&)>& count_rows = {},
    const std::function<bool(int axis, const SpmdRule::Option*)>& may_take = {});

}  // namespace shardrun
