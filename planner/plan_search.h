// PlanSearch: the search for a Graph's best plan under one planner and one memory limit.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "planner/planner.h"
#include "planner/solver/limited_search.h"
#include "planner/space/constraints.h"
#include "planner/space/extract_plan.h"

namespace shardrun {

struct GameOptions;  // planner/game/board.h
struct GameTable;    // planner/game/proposal.h

/// A plan whose arena was looked at, and what it predicts.
struct LaidOut {
  Plan plan;
  std::vector<double> node_seconds;  // without what brings operands to a node
};

/// Folds the graph, finds its classes' strategies, and solves the joint Problem again and again
/// until what a solution says fits.
///
///     PlanSearch search(graph, mesh, cluster, options, rules);
///     const std::optional<Plan> plan = search.run(report);
///     if (!plan) ... search.smallest() ...
class PlanSearch {
 public:
  /// All must outlive this.
  PlanSearch(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
             const PlanOptions& options, RuleCache& rules);

  /// nullopt if none that was found fits. Throws invalid_input where planner, requests and what is
  /// avoided leave no plan.
  std::optional<Plan> run(PlanReport& report);

  /// A game over all strategies of this search, which must outlive it. Instead of run().
  std::unique_ptr<GameTable> table(const GameOptions& rules);
  RuleOf rule_of() const;

  /// Of the plans that were laid out the one of the fewest bytes.
  const std::optional<LaidOut>& smallest() const { return smallest_; }
  /// Of all plans, whatever they need.
  double unlimited_bound() const { return unlimited_bound_; }
  /// Does what would be the best if memory were no matter not fit?
  bool limited() const { return limited_; }
  /// What persists comes to at least so much on a rank, in any plan.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  SearchSpace prepare(PlanReport& report);
  std::unique_ptr<GameTable> table_of(SearchSpace space, const GameOptions& rules);
  void keep_proposed(SearchSpace& space, PlanReport& report);
  std::optional<Solution> proposed_start(const FactoredProblem& problem) const;
  bool searches_trees() const {
    return planner_ == PlannerKind::mcts || planner_ == PlannerKind::mcts_arguments;
  }
  void find_rules();
  SpmdRule rule_with_rows(size_t item_class);
  SearchSpace enumerate();
  int64_t count_rows(const Folding::Class& members, NodePlan& plan);
  std::vector<Strategy> pooled(const Folding::Class& members);
  void drop_avoided(SearchSpace& space) const;
  void restrict(SearchSpace& space);
  void require_a_plan(int round) const;
  std::optional<Plan> solve(SearchSpace space, PlanReport& report);
  Plan lay_out(const PlanContext& problem, const Solution& solution, bool share, ArenaUse& use);
  std::optional<Plan> fitting(const PlanContext& problem, const Solution& solution, ArenaUse& use);
  int64_t least_held(const SearchSpace& space) const;
  LimitedOptions::Method method() const;

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  const PlannerKind planner_ = *planner_named(options_.planner);
  RuleCache& rules_;
  ReshardTimes own_times_;
  ReshardTimes& times_;
  NumberedRows numbered_;
  Constraints constraints_;
  Folding folding_;
  std::vector<SpmdRule> class_rules_;
  bool limited_ = false;
  double unlimited_bound_ = 0;
  int64_t held_bytes_ = 0;
  std::optional<LaidOut> smallest_;
  std::vector<int> proposed_;  // by class, what a tree search's cheapest has of those kept; or -1
};

}  // namespace shardrun
