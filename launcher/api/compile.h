// From plans to Programs, laid out in memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/plan.h"
#include "model.h"
#include "planner/rank_classes.h"

namespace shardrun {

/// One rank's Program under a plan, every buffer at its place. `beside`: a Program whose persistent
/// memory it shares. Steps are joined (planner/join_steps.h), but for the one rank of a replay,
/// which shows what every node of the Graph makes.
enum class Steps { joined, all };
Program compile(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                const Program* beside = nullptr, Steps steps = Steps::joined);

/// The Programs of all ranks under a plan, as far as their bytes go: one of each class of ranks,
/// made when it is asked for.
class PlanPrograms {
 public:
  /// `beside`: the training step's, if these share its persistent memory.
  PlanPrograms(const Graph& graph, Plan plan, const Cluster& cluster,
               std::shared_ptr<PlanPrograms> beside = nullptr);

  PlanPrograms(const PlanPrograms&) = delete;
  PlanPrograms& operator=(const PlanPrograms&) = delete;

  const Plan& plan() const { return plan_; }
  const Graph& graph() const { return graph_; }  // with what the plan computes again
  const Program& of_rank(int64_t rank);
  /// The rank's with the most arena bytes, or the first that has more than `limit` (0: no limit).
  const Program& fullest(int64_t limit);

 private:
  Plan plan_;
  std::optional<Graph> recomputing_;  // the graph with what the plan computes again, if anything
  const Graph& graph_;
  Partition partition_;
  std::shared_ptr<PlanPrograms> beside_;
  RankClasses classes_;
  std::vector<std::optional<Program>> programs_;  // by class
};

/// The same of several plans for one graph, the last asked for remembered: a plan is measured while
/// it is looked for, and again when it is printed.
class MeasuredPlans {
 public:
  MeasuredPlans(const Graph& graph, const Cluster& cluster) : graph_(graph), cluster_(cluster) {}
  std::shared_ptr<PlanPrograms> of(const Plan& plan,
                                   std::shared_ptr<PlanPrograms> beside = nullptr);

 private:
  const Graph& graph_;
  const Cluster& cluster_;
  std::shared_ptr<PlanPrograms> last_, last_beside_;
};

}  // namespace shardrun
