// Times of resharding, many at once: the planner's edges need them for every pair of Shardings.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/sharding.h"
#include "planner/cost/cluster.h"
#include "planner/reshard/reshard.h"
#include "planner/solver/factored_problem.h"

namespace shardrun {

/// Every way in which up to three mesh axes can stand on a value of some dims (free, partial, or at
/// a position among the cuts of a dim), and every collective that leads from one to another. It
/// depends on the numbers of axes and dims alone. With three axes, 3 dims have 176 states, 4 have
/// 296.
class ReshardGraph {
 public:
  static constexpr int kMostAxes = 3, kMostDims = 6;
  ReshardGraph(int axes, int dims);

  struct Move {
    uint16_t next = 0;
    uint8_t kind = 0;  // Collective::Kind
    uint8_t axes = 0;  // bit i: axis i takes part
    uint8_t dim = 0, to_dim = 0;
  };
  struct State {
    /// Per dim the axes that cut it, outermost first.
    std::vector<std::vector<int>> cuts;
  };
  size_t size() const { return states_.size(); }
  const State& state(size_t id) const { return states_[id]; }
  /// Moves out of state s are moves()[first(s)] … moves()[first(s + 1) - 1].
  const std::vector<Move>& moves() const { return moves_; }
  size_t first(size_t state) const { return first_[state]; }
  /// cuts[dim]: axes, outermost first; partial: bit i for axis i.
  int find(const std::vector<std::vector<int>>& cuts, unsigned partial) const;

 private:
  size_t code(const std::vector<std::vector<int>>& cuts, unsigned partial) const;
  void enumerate(int axis, std::vector<std::vector<int>>& cuts, unsigned partial);
  void expand(size_t state);

  int axes_, dims_;
  std::vector<State> states_;
  std::vector<unsigned> partial_;  // of each state
  std::vector<int> index_;         // code -> state, -1: none
  std::vector<Move> moves_;
  std::vector<size_t> first_;
};

/// A Sharding by its number, and how often in a step somebody wants a value so.
struct Wanted {
  int sharding = 0;
  int times = 1;
};

/// The seconds of cheapest_reshard (planner/reshard/reshard.h) without its steps, by small numbers
/// for types and Shardings. One search from a Sharding finds the times to all others of a type;
/// types whose states hold the same bytes share them. What the graph above does not hold (more than
/// three axes, cuts of dims of one element, partial values of two kinds) is searched pair by pair.
class ReshardTimes {
 public:
  ReshardTimes(const Mesh& mesh, const Cluster& cluster);
  int number_of(const Sharding& sharding);
  int number_of(const TensorType& type);
  const Sharding& sharding(int number) const { return *shardings_[static_cast<size_t>(number)]; }
  double seconds(int type, int from, int to);
  /// A value of `type` that has a Sharding have[a] and is wanted in all of wants[b]: an edge
  /// between what makes it, with as many strategies as `have` has, and what wants it.
  FactoredProblem::Edge edge(int type, const std::vector<int>& have,
                             const std::vector<std::vector<int>>& wants);
  /// cheapest_reshard itself, remembered.
  const std::vector<ReshardStep>& steps(int type, int from, int to);
  /// Time to make the copies of a value that its readers want, as partition does it: `handed` first
  /// (-1: none), then one after the other, each from the copy there is that is the cheapest to
  /// start from; `anew`: what one reader had is not there for the next. `wanted`: in the order of
  /// use. What is made for a reader is made as often as that one runs.
  double hand_out_seconds(int type, int produced, int handed, bool anew,
                          const std::vector<Wanted>& wanted);
  size_t searches() const { return searches_; }  // of one Sharding to all, or to one

 private:
  struct Hash {
    size_t operator()(const Sharding& sharding) const;
  };
  /// Types whose states hold the same bytes.
  struct Table {
    const ReshardGraph* graph = nullptr;
    std::vector<double> bytes;  // by state, of the largest shard
    std::vector<double> cost;   // by move
    std::vector<bool> searched;
    std::shared_ptr<FactoredProblem::Matrix> seconds;  // from state to state, once searched
  };
  struct Type {
    TensorType type;
    Table* table = nullptr;  // nullptr: pair by pair
    std::vector<int> dim;    // of the table, by dim of the type; -1: of one element
    std::vector<int> state;  // by Sharding's number; -1: not in the graph, -2: not asked yet
    std::unordered_map<uint64_t, double> pairs;
    std::unordered_map<uint64_t, std::vector<ReshardStep>> steps;
  };
  void find_table(Type& type);
  int state_of(Type& type, int sharding);
  void search(Table& table, int from);

  const Mesh& mesh_;
  const Cluster& cluster_;
  std::vector<int> axes_;     // of more than one rank
  std::vector<int> axis_of_;  // by mesh axis: its place in axes_, -1
  std::unordered_map<Sharding, int, Hash> numbers_;
  std::vector<const Sharding*> shardings_;
  std::map<std::pair<DType, Shape>, int> type_numbers_;
  std::vector<Type> types_;
  std::map<int, std::unique_ptr<ReshardGraph>> graphs_;  // by dims
  /// By every state's outermost dims and bytes.
  std::map<std::pair<std::vector<unsigned>, std::vector<double>>, std::unique_ptr<Table>> tables_;
  size_t searches_ = 0;
};

}  // namespace shardrun
