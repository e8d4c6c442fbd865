// ReshardTimes: times of resharding between every pair of Shardings, for the planner's edges.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "graph/sharding.h"
#include "planner/cost/cluster.h"
#include "planner/reshard/reshard.h"
#include "planner/reshard/sum_price.h"
#include "planner/solver/factored_problem.h"

namespace shardrun {

class ReshardGraph;  // of states and moves

/// A Sharding by its number, and how often in a step somebody wants a value so.
struct Wanted {
  int sharding = 0;
  int times = 1;
};

/// The seconds of cheapest_reshard (planner/reshard/reshard.h) without its steps, by small numbers
/// for types and Shardings. One search from a Sharding finds the times to all others of a type;
/// types whose states hold the same bytes share them. What its graph does not hold (more than
/// three axes, cuts of a type's dims of one element, partial values of two kinds) is searched pair
/// by pair.
class ReshardTimes {
 public:
  ReshardTimes(const Mesh& mesh, const Cluster& cluster);
  int number_of(const Sharding& sharding);
  /// `price`: of the values of that type that are meant. It does not change which steps a
  /// resharding takes.
  int number_of(const TensorType& type, const SumPrice& price = {});
  const Sharding& sharding(int number) const { return *shardings_[static_cast<size_t>(number)]; }
  double seconds(int type, int from, int to);
  /// A value of `type` that has a Sharding have[a] and is wanted in all of wants[b]: an edge
  /// between what makes it, with as many strategies as `have` has, and what wants it.
  FactoredProblem::Edge edge(int type, const std::vector<int>& have,
                             const std::vector<std::vector<int>>& wants);
  /// cheapest_reshard itself, remembered; of a sum with the seconds that its price says.
  const std::vector<ReshardStep>& steps(int type, int from, int to);
  /// Time to make the copies of a value that its readers want, as partition does it:
  /// `redistributed` first (-1: none), then one after the other, each from the copy there is that
  /// is the cheapest to start from; `regathered`: what one reader had is not there for the next.
  /// `wanted`: in the order of use. What is made for a reader is made as often as that one runs.
  double redistribution_seconds(int type, int produced, int redistributed, bool regathered,
                                const std::vector<Wanted>& wanted);
  /// What that adds up, in order: a step, for which of `wanted`, and how often it is taken.
  struct Redistribution {
    const ReshardStep* step = nullptr;  // as long as this lives
    size_t wanted = 0;
    int times = 1;
  };
  std::vector<Redistribution> redistribution(int type, int produced, int redistributed,
                                             bool regathered, const std::vector<Wanted>& wanted);
  size_t searches() const { return searches_; }  // of one Sharding to all, or to one

 private:
  struct Hash {
    size_t operator()(const Sharding& sharding) const;
  };
  /// Types whose states hold the same bytes, of one price.
  struct Table {
    const ReshardGraph* graph = nullptr;
    std::vector<double> cost;     // by move
    std::vector<double> of_sums;  // what it adds on the way from a sum; empty: the same
    std::vector<bool> searched;
    std::shared_ptr<FactoredProblem::Matrix> seconds;  // from state to state, once searched
  };
  struct Type {
    TensorType type;
    SumPrice price;
    Table* table = nullptr;  // nullptr: pair by pair
    std::vector<int> dim;    // of the table, by dim of the type; -1: of one element
    std::vector<int> state;  // by Sharding's number; -1: not in the graph, -2: not asked yet
    std::unordered_map<uint64_t, double> pairs;
    std::unordered_map<uint64_t, std::vector<ReshardStep>> steps;
  };
  void find_table(Type& type);
  int state_of(Type& type, int sharding);
  void search_from(Table& table, int from);

  const Mesh& mesh_;
  const Cluster& cluster_;
  std::vector<int> axes_;     // of more than one rank
  std::vector<int> axis_of_;  // by mesh axis: its place in axes_, -1
  std::unordered_map<Sharding, int, Hash> numbers_;
  std::vector<const Sharding*> shardings_;
  std::map<std::tuple<DType, Shape, SumPrice>, int> type_numbers_;
  std::vector<Type> types_;
  std::map<size_t, std::shared_ptr<const ReshardGraph>> graphs_;  // by dims
  /// By price, and every state's outermost dims and bytes.
  std::map<std::pair<SumPrice, std::vector<std::pair<unsigned, double>>>, std::unique_ptr<Table>>
      tables_;
  size_t searches_ = 0;
};

}  // namespace shardrun
