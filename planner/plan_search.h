// PlanSearch: the search for a Graph's best plans under one planner, without and with less memory.
#pragma once

#include <functional>
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
  double cost = 0, bound = 0;        // of the joint Problem; the latter if memory is no matter
  int nodes = 0, folded_nodes = 0;   // of the step
  std::string solver;                // which part of the search found it
  bool timed = true;                 // by PlanOptions::retime, if there is one
};

/// Folds the graph, finds its classes' strategies, and solves the joint Problem: first as if memory
/// were no matter, then for arenas of fewer and fewer bytes, each time from what fitted before.
///
///     PlanSearch search(graph, mesh, cluster, options, rules, [](const LaidOut& plan) { ... });
///     if (!search.run(report)) {
///       while (search.within(target, report)) target *= 0.9;
///     }
class PlanSearch {
 public:
  /// Hears of every plan that is laid out.
  using OnPlan = std::function<void(const LaidOut&)>;

  /// All must outlive this.
  PlanSearch(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
             const PlanOptions& options, RuleCache& rules, OnPlan on_plan = nullptr);
  ~PlanSearch();

  /// Solves as if memory were no matter; nothing is laid out. Throws invalid_input where planner,
  /// requests and what is avoided leave no plan.
  void solve(PlanReport& report);
  /// Does that, too. Its plan, if it is within the options' limit.
  std::optional<Plan> run(PlanReport& report);

  /// After solve(): looks for a plan whose arena has at most `target` bytes, from the last that was
  /// found. Was one found? What is tried does not depend on the options' limit. What fits is timed
  /// if `timed` says so, with and without copies that readers share.
  bool within(int64_t target, PlanReport& report, bool timed = true);
  /// The next within() starts from solve()'s solution again.
  void restart();
  /// How far within() has come, and back to there.
  struct State;
  std::shared_ptr<const State> state() const;
  void go_back(const State& state);
  /// No plan whose claims are within so many bytes costs less.
  double bound_within(int64_t bytes);

  /// A game over all strategies of this search, which must outlive it. Instead of run().
  std::unique_ptr<GameTable> table(const GameOptions& rules);
  RuleOf rule_of() const;

  /// Of all plans, whatever they need.
  double unlimited_bound() const { return unlimited_bound_; }
  /// What persists comes to at least so much on a rank, in any plan.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  SearchSpace prepare(PlanReport& report);
  std::unique_ptr<GameTable> table_of(SearchSpace space, const GameOptions& rules);
  void keep_proposed(SearchSpace& space, PlanReport& report);
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
  void require_a_plan() const;
  Plan lay_out(const Solution& solution, bool share, bool timed, int64_t target,
               const std::string& solver, ArenaUse& use);
  void note_sharing(const Solution& solution, const std::string& solver);
  std::vector<int64_t> beside_claims(const Solution& solution, const ArenaUse& use) const;
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
  OnPlan on_plan_;
  struct Posed;
  std::unique_ptr<Posed> posed_;
  double unlimited_bound_ = 0, seconds_within_ = 0;  // the latter: of work, at most
  int64_t held_bytes_ = 0;
};

}  // namespace shardrun
