// The search for a Graph's best plan under one planner and one memory limit.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "planner/constraints.h"
#include "planner/extract_plan.h"
#include "planner/limited_search.h"
#include "planner/planner.h"

namespace shardrun {

/// Folds the graph, finds its classes' strategies, and solves the joint Problem again and again
/// until what a solution says fits.
///
///     PlanSearch search(graph, mesh, cluster, options, rules);
///     const std::optional<Plan> plan = search.run(report);
///     if (!plan) ... search.least_bytes() ...
class PlanSearch {
 public:
  /// All must outlive this.
  PlanSearch(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
             const PlanOptions& options, RuleCache& rules);

  /// nullopt if none that was found fits. Throws invalid_input where planner, requests and what is
  /// avoided leave no plan.
  std::optional<Plan> run(PlanReport& report);

  /// Of the plans that were laid out.
  int64_t least_bytes() const {
    return smallest_ ? smallest_->bytes : std::numeric_limits<int64_t>::max();
  }
  const std::optional<Plan>& smallest() const { return smallest_; }
  /// Of all plans, whatever they need.
  double unlimited_bound() const { return unlimited_bound_; }
  /// Does what would be the best if memory were no matter not fit?
  bool limited() const { return limited_; }
  /// Of the nodes under the last solution that was looked at, without what brings their operands.
  const std::vector<double>& node_seconds() const { return node_seconds_; }
  /// Of values alone, in any plan of this search.
  int64_t needed_bytes() const { return needed_bytes_; }

 private:
  void find_rules();
  SpmdRule rule_of(size_t item_class);
  SearchSpace enumerate();
  void drop_avoided(SearchSpace& space) const;
  std::optional<Plan> solve(SearchSpace space, PlanReport& report);
  std::optional<Plan> fitting(const PlanProblem& problem, const Solution& solution, ArenaUse& use);
  ArenaUse measure(Plan& plan, const FactoredProblem& problem, const Solution& solution);
  LimitedOptions::Method method() const;

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  RuleCache& rules_;
  ReshardTimes own_times_;
  ReshardTimes& times_;
  NumberedRows numbered_;
  Constraints constraints_;
  Folding folding_;
  std::vector<SpmdRule> class_rules_;
  std::vector<double> node_seconds_;
  bool limited_ = false;
  double unlimited_bound_ = 0;
  int64_t needed_bytes_ = 0;      // by any plan, beside workspaces
  std::optional<Plan> smallest_;  // that was laid out
};

}  // namespace shardrun
