// LocalSearch: good solutions of a Problem by coordinate descent and optimal moves of whole trees.
#pragma once

#include <functional>
#include <optional>
#include <random>

#include "planner/solver/descent/forest.h"
#include "planner/solver/flat_problem.h"
#include "planner/solver/memory_use.h"

namespace shardrun {

struct LocalSearchOptions {
  uint64_t seed = 0;
  int rounds = 100;                   // forest moves at most
  int patience = 40;                  // give up after so many that gained nothing
  double target = -kInfeasible;       // stop at this cost
  std::function<bool()> out_of_time;  // asked often; may be null
  /// Prices of memory per kept time, for the forest moves' inner problem.
  const std::vector<double>* prices = nullptr;
};

class LocalSearch {
 public:
  explicit LocalSearch(const Problem& problem);

  const FlatProblem& flat() const { return flat_; }

  /// Best solution found from `start`, which may be infeasible: memory is repaired first. nullopt
  /// if none that fits and is allowed was found. A move re-optimises exactly, by dynamic
  /// programming, a random set of nodes that induces a forest, with the others fixed (Hamze and de
  /// Freitas 2004, "From fields to trees"). Deterministic in its arguments.
  std::optional<Solution> improve(Solution start, const LocalSearchOptions& options);

  /// With the least peak over what was seen while repairing (memory-limited problems).
  const std::optional<Solution>& tightest() const { return tightest_; }

 private:
  void local_costs(int node, const Solution& solution, std::vector<double>& out) const;
  bool late() const { return out_of_time_ && out_of_time_(); }
  bool repair(Solution& solution);
  void descend(Solution& solution, std::mt19937_64& random);
  std::vector<bool> stale_nodes(const Solution& solution) const;
  void count_visit(int node) const;
  /// From a member of a forest to its parent; null: a root or no member.
  std::vector<const FlatProblem::Arc*> arcs_up(const Forest& forest) const;
  /// A member's costs with all that is not in the forest as it is.
  void cost_in_forest(int node, const Forest& forest, const Solution& solution,
                      const std::vector<double>* prices, double* cost) const;
  void forest_move(Solution& solution, std::mt19937_64& random,
                   const std::vector<double>* prices) const;
  void note_peak(const Solution& solution);

  const Problem& problem_;
  FlatProblem flat_;
  std::vector<std::vector<int>> neighbours_;  // by node
  MemoryUse memory_;
  std::function<bool()> out_of_time_;
  int64_t least_peak_ = std::numeric_limits<int64_t>::max();
  std::optional<Solution> tightest_;
  std::optional<Solution> settled_;  // where a descent ended last, if memory is not limited
};

}  // namespace shardrun
