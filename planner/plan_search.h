// PlanSearch: the search for a Graph's best plan under one planner and one memory limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "planner/planner.h"
#include "planner/solver/limited_search.h"
#include "planner/space/constraints.h"
#include "planner/space/extract_plan.h"

namespace shardrun {

class StepTimes;     // planner/step_times.h
struct GameOptions;  // planner/game/board.h
struct GameTable;    // planner/game/proposal.h

/// A plan whose arena was looked at, and what it predicts.
struct LaidOut {
  Plan plan;
  std::vector<double> node_seconds;  // without what brings operands to a node
};

/// How long a search looks for a plan within a limit, and how close to the best is good enough.
struct Effort {
  double seconds = 10;   // of work (planner/solver/deadline.h)
  double gap = 1e-4;     // relative
  int rounds = 11;       // solutions that are laid out at most
  double shares = 1;     // of the limit: plans of fewer bytes are tried with copies that are shared
  bool polishes = true;  // LimitedOptions'
  int patience = 0;      // the same
  int64_t enough = kAnyArena;  // PlanOptions::arena_use's
};

/// Folds the graph, finds its classes' strategies, and solves the joint Problem: once as if memory
/// were no matter, and again and again until what a solution says fits.
///
///     PlanSearch search(graph, tables, options, rules);
///     search.pose(report);  // open() does it, too
///     search.open(report);
///     search.loose();
///     if (!search.fastest()) search.within(options.memory_limit, Effort(), report);
///     if (!search.fastest()) ... search.smallest() ...
class PlanSearch {
 public:
  /// All must outlive this.
  PlanSearch(const Graph& graph, MeshTables& tables, const PlanOptions& options, RuleCache& rules);

  /// Finds the strategies, once. Throws invalid_input where planner, requests and what is avoided
  /// leave a node none.
  void pose(PlanReport& report);
  /// Also solves as if memory were no matter. `polishes`: as in LimitedOptions; `known`: solutions
  /// of searches that differ in prices alone. Throws invalid_input where there is no plan.
  void open(PlanReport& report, bool polishes = true, const std::vector<Solution>& known = {});
  /// The same from what open() found for these once, without solving anew.
  void reopen(const Solution& loosest, double lower_bound);
  bool is_solved() const { return loosest_.has_value(); }
  /// What open() found.
  const Solution& loosest() const { return *loosest_; }
  /// What a tree search proposed, for PlanOptions::proposed.
  const std::vector<std::vector<Strategy>>& proposed() const { return proposed_; }
  /// Seconds of such a solution as this search prices it.
  double cost(const Solution& solution) const { return raw_cost(joint_->problem, solution); }
  /// Of open() the plan, which may be larger than the limit; what each reader wants is then shared.
  LaidOut loose();
  /// From a solution of this search, or one that differs in prices alone, whose plan's step takes
  /// `seconds`: looks for a shorter one, where collectives run while kernels do. Lays out what is
  /// near it (planner/near_solutions.h), the likeliest first, until one is shorter, and what a
  /// descent from the fastest comes to (planner/step_descent.h). Times are those with what is kept
  /// (PlanOptions::retime_kept). False if none is shorter; else fastest() is the shortest. Sets the
  /// report's cost and solver.
  bool shorten(const Solution& solution, double seconds, PlanReport& report);
  /// The best plan of at most so many bytes; nullopt: none was found. What is found depends on
  /// these and the effort alone, not on earlier calls.
  std::optional<LaidOut> within(int64_t limit, const Effort& effort, PlanReport& report);

  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  /// A game over all strategies of this search, which must outlive it. Instead of open().
  std::unique_ptr<GameTable> table(const GameOptions& rules);
  RuleOf rule_of() const;

  /// Of the plans that the last call laid out the one of the fewest bytes, and the fastest that
  /// fits the options' limit.
  const std::optional<LaidOut>& smallest() const { return smallest_; }
  const std::optional<LaidOut>& fastest() const { return fastest_; }
  /// Was something that shorten() laid out larger than the limit?
  bool missed() const { return missed_; }
  /// No plan's claims come to less at their fullest time.
  int64_t least_claims() const { return least_claims_; }
  /// What persists comes to at least so much on a rank, in any plan.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  SearchSpace prepare(PlanReport& report);
  std::unique_ptr<GameTable> table_of(SearchSpace space, const GameOptions& rules);
  void keep_proposed(SearchSpace& space, PlanReport& report);
  std::vector<Solution> proposed_starts() const;
  bool searches_trees() const {
    return planner_ == PlannerKind::mcts || planner_ == PlannerKind::mcts_arguments;
  }
  void find_rules();
  SpmdRule rule_with_rows(size_t item_class);
  SearchSpace enumerate();
  std::vector<Solution> likely_near(const Solution& solution, StepTimes& times) const;
  double fraction_run(const Node& node) const;
  int64_t count_rows(const Folding::Class& members, NodePlan& plan);
  std::vector<Strategy> pooled(const Folding::Class& members);
  void drop_avoided(SearchSpace& space) const;
  void restrict(SearchSpace& space);
  void require_a_plan(const LimitedResult& found) const;
  LimitedResult solve_round(LimitedSearch& search, const std::vector<int64_t>& capacity,
                            const std::vector<Solution>& starts, double seconds,
                            PlanReport& report) const;
  LimitedSearch solver(const Effort& effort) const;
  LaidOut lay_out(const Solution& solution, bool share, int64_t enough, ArenaUse& use);
  std::optional<LaidOut> fitting(const Solution& solution, int64_t limit, double shares,
                                 int64_t enough, ArenaUse& use);
  int64_t least_held(const SearchSpace& space) const;
  LimitedOptions::Method method() const;

  const Graph& graph_;
  MeshTables& tables_;
  const Mesh& mesh_ = tables_.mesh;
  const Cluster& cluster_ = tables_.cluster;
  const PlanOptions& options_;
  const PlannerKind planner_ = options_.planner.kind;
  RuleCache& rules_;
  NumberedRows numbered_;
  Constraints constraints_;
  Folding folding_;
  std::vector<SpmdRule> class_rules_;
  double unlimited_bound_ = 0;
  int64_t held_bytes_ = 0, least_claims_ = 0;
  std::optional<LaidOut> smallest_, fastest_;
  bool missed_ = false;
  std::vector<std::vector<Strategy>> proposed_;  // by class, of a tree search
  std::vector<int> cheapest_;                    // by class, what its cheapest has of those; or -1
  // What is solved, from open() on.
  std::optional<SearchSpace> space_;
  std::optional<JointProblem> joint_;
  std::optional<PlanContext> posed_;
  std::vector<Solution> starts_;
  std::optional<Solution> loosest_;  // as if memory were no matter
};

}  // namespace shardrun
