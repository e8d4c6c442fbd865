// SearchSpace: a folded Graph's strategies, and the Problem of choosing among them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/reshard/reshard_table.h"
#include "planner/solver/problem.h"
#include "planner/space/folding.h"
#include "planner/space/strategy.h"

namespace shardrun {

struct SearchSpace {
  /// Per class of the Folding: a node's strategies; for an input value strategies with one `out`
  /// and nothing in, the Shardings that it may be held in.
  std::vector<std::vector<Strategy>> strategies;
  /// May an update make a parameter in another Sharding than it is held in? The parts are then
  /// gathered, as ZeRO does.
  bool reshards_updates = false;
  /// Values (by id; empty: none) that are redistributed to each reader anew, from the Sharding that
  /// they are made or held in: they get no hub.
  std::vector<bool> regathered = {};
  /// Values (likewise) whose copies are not made from a common one, and such that are from one that
  /// lies so.
  std::vector<bool> from_nearest = {};
  std::map<ValueId, Sharding> copied_from = {};
  /// May a value be redistributed in that Sharding? Null: in any.
  std::function<bool(ValueId, const Sharding&)> may_redistribute = nullptr;
  std::vector<SumPrice> sum_prices;  // by value
};

/// A value with several readers gets a hub, a node of the problem that chooses the Sharding in
/// which the value is redistributed: producer -> hub -> readers. So a resharding that several
/// readers share is paid once, and its copy takes over from what the node made. What a reader wants
/// otherwise is made for it alone. The hub of a value in held memory may also need no memory of its
/// own: if the value lies so, or if it is in summands that may be reduced where they lie.
struct Hub {
  int node = 0;                // of the problem
  ValueId value = kNoValue;    // whose; an example of its class
  std::vector<int> shardings;  // per choice, ReshardTimes' number
  std::vector<bool> in_place;  // per choice: it takes no memory, the value must lie accordingly
};

/// Fills in the strategies of the input values' classes: what its readers want and its updates
/// make, or what it is pinned to. Partial ones are left out, but for sums of what starts every step
/// at zero: zero on every rank is zero in all. So gradients add up over the micro-batches rank by
/// rank and are reduced once, where that is cheaper. Node classes must be there already. Scalars
/// are always replicated.
void add_value_strategies(SearchSpace& space, const Graph& graph, const Folding& folding,
                          const std::map<std::string, Sharding>& pinned);

/// The problem over the classes: node c of it is class c; behind them come the hubs.
struct JointProblem {
  FactoredProblem problem;
  std::vector<Hub> hubs;
  /// Per class of the Folding: the class of nodes, and which of its results, that the held values
  /// are replaced by and lie as; their own node has nothing to choose. {-1, 0}: they choose.
  std::vector<std::pair<int, int>> lies_as;
};

/// Costs and memory of a class are those of all its members. Seconds; bytes as the arena rounds
/// them. Memory is additive over live values: persistent ones always, a batch until its last
/// reader, a result from its node to its last reader, in-place results from the step after; of a
/// value with a hub the hub's copy. Workspaces are not in it, nor what is made for one reader.
JointProblem build_problem(const SearchSpace& space, const Graph& graph, const Folding& folding,
                           const Mesh& mesh, ReshardTimes& times);

}  // namespace shardrun
