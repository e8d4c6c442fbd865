// SearchSpace: a folded Graph's strategies, and the Problem of choosing among them.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "planner/folding.h"
#include "planner/problem.h"
#include "planner/strategy.h"

namespace shardrun {

/// Times of resharding, remembered by type and Shardings (both by small numbers). A pair that
/// differs from a known one only by swapping axes of one size and one link takes the same time: on
/// 2x2x2 a sixth of the pairs is searched.
class ReshardTimes {
 public:
  ReshardTimes(const Mesh& mesh, const Cluster& cluster);
  int number_of(const Sharding& sharding);
  int number_of(const TensorType& type);
  const Sharding& sharding(int number) const { return *shardings_[static_cast<size_t>(number)]; }
  double seconds(int type, int from, int to);
  size_t searches() const { return searches_; }

 private:
  int renamed(int number, size_t symmetry);

  const Mesh& mesh_;
  const Cluster& cluster_;
  std::map<Sharding, int> numbers_;
  std::vector<const Sharding*> shardings_;
  std::map<std::pair<DType, Shape>, int> type_numbers_;
  std::vector<TensorType> types_;
  std::unordered_map<uint64_t, double> known_;
  std::vector<std::vector<int>> symmetries_;  // [0] is the identity
  std::vector<std::vector<int>> renamed_;     // Sharding, symmetry -> Sharding
  size_t searches_ = 0;
};

struct SearchSpace {
  /// Per class of the Folding: a node's strategies; for an input value strategies with one `out`
  /// and nothing in, the Shardings that it may be held in.
  std::vector<std::vector<Strategy>> strategies;
};

/// Fills in the strategies of the input values' classes: what its readers want and its updates
/// make, uncut partial ones apart, or what it is pinned to. Node classes must be there already;
/// those of them that contradict a pinned result are removed. Scalars are always replicated.
void add_value_strategies(SearchSpace& space, const Graph& graph, const Folding& folding,
                          const std::map<std::string, Sharding>& pinned);

/// The Problem over the classes: node c of the Problem is class c; behind them come the hubs.
///
/// A value with several readers gets a hub, a node that chooses the Sharding in which it is handed
/// out: producer -> hub -> readers. So a resharding that several readers share is paid once, as at
/// run time. Costs and memory of a class are those of all its members. Seconds; bytes as the arena
/// rounds them. Memory is additive over live values: persistent ones always, a batch until its last
/// reader, a result from its node to its last reader, in-place results from the step after.
/// Resharded copies and workspaces are not in it.
Problem build_problem(const SearchSpace& space, const Graph& graph, const Folding& folding,
                      const Mesh& mesh, ReshardTimes& times, bool with_memory);

}  // namespace shardrun
