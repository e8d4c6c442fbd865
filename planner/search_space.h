// SearchSpace: a folded Graph's strategies, and the Problem of choosing among them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/folding.h"
#include "planner/problem.h"
#include "planner/reshard_table.h"
#include "planner/strategy.h"

namespace shardrun {

struct SearchSpace {
  /// Per class of the Folding: a node's strategies; for an input value strategies with one `out`
  /// and nothing in, the Shardings that it may be held in.
  std::vector<std::vector<Strategy>> strategies;
  /// May an update make a parameter in another Sharding than it is held in? The parts are then
  /// gathered, as ZeRO does.
  bool reshards_updates = false;
  /// Values (by id; empty: none) that are handed to each reader anew, so that no resharded copy
  /// waits for the next one: Plan::regathered.
  std::vector<bool> regathered = {};
};

/// Fills in the strategies of the input values' classes: what its readers want and its updates
/// make, uncut partial ones apart, or what it is pinned to. Node classes must be there already.
/// Scalars are always replicated.
void add_value_strategies(SearchSpace& space, const Graph& graph, const Folding& folding,
                          const std::map<std::string, Sharding>& pinned);

/// The problem over the classes: node c of it is class c; behind them come the hubs.
///
/// A value with several readers gets a hub, a node that chooses the Sharding in which it is handed
/// out: producer -> hub -> readers. So a resharding that several readers share is paid once, as at
/// run time. Costs and memory of a class are those of all its members. Seconds; bytes as the arena
/// rounds them. Memory is additive over live values: persistent ones always, a batch until its last
/// reader, a result from its node to its last reader, in-place results from the step after.
/// Resharded copies and workspaces are not in it.
FactoredProblem build_problem(const SearchSpace& space, const Graph& graph, const Folding& folding,
                              const Mesh& mesh, ReshardTimes& times);

}  // namespace shardrun
