// PlanPrograms: the Programs of all ranks under a plan, as far as their bytes go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "program/compile.h"
#include "program/partition/rank_classes.h"

namespace shardrun {

/// One Program of each class of ranks, made when it is asked for. The graph must live as long as
/// this.
class PlanPrograms {
 public:
  /// `training`: the training step's, if these share its persistent memory.
  PlanPrograms(const Graph& graph, Plan plan, const Cluster& cluster, const BackendTraits& traits,
               std::shared_ptr<PlanPrograms> training = nullptr);

  PlanPrograms(const PlanPrograms&) = delete;
  PlanPrograms& operator=(const PlanPrograms&) = delete;

  const Plan& plan() const { return plan_; }
  const Graph& graph() const { return graph_; }  // with what the plan computes again
  const Program& of_rank(int64_t rank) { return of_rank(rank, ArenaLimits()); }
  const RankClasses& classes() const { return classes_; }
  /// What rank 0 would do before its first step under this plan if `plan` says what it keeps.
  std::vector<Step> setup_keeping(const Plan& plan) const;
  /// The rank's with the most arena bytes.
  const Program& fullest();
  /// By which ranks plans are compared: by the first, which has the largest shards, where it takes
  /// at most half of the limit (0: none). Others have more halos, or meet other peers, but are not
  /// expected to take twice as much. Else by one of each class. Plans that are run are counted on
  /// every rank.
  std::vector<int64_t> compared_ranks(int64_t limit);
  /// Of these the one with the most arena bytes; or one that has more than `enough`. Where that is
  /// given, those of more than the limit are as CompileOptions::limits says. It stays until the
  /// next call.
  const Program& compared(int64_t limit, int64_t enough = kAnyArena);

 private:
  const Program& of_rank(int64_t rank, const ArenaLimits& limits);
  const Program& fullest_of(const std::vector<int64_t>& ranks, const ArenaLimits& limits);
  std::vector<int64_t> compared_ranks(int64_t limit, const Program& first) const;

  Plan plan_;
  std::optional<Graph> recomputing_;  // the graph with what the plan computes again, if anything
  const Graph& graph_;
  const BackendTraits traits_;
  Partition partition_;
  std::shared_ptr<PlanPrograms> training_;
  RankClasses classes_;
  struct Compiled {
    std::optional<Program> program;
    ArenaLimits limits;  // of that
  };
  std::vector<Compiled> programs_;  // by class
};

/// The same of several plans for one graph, the last two remembered: a plan is measured while it is
/// looked for, next to another that may be faster, and again when it is printed.
class MeasuredPlans {
 public:
  MeasuredPlans(const Graph& graph, const Cluster& cluster, const BackendTraits& traits)
      : graph_(graph), cluster_(cluster), traits_(traits) {}
  std::shared_ptr<PlanPrograms> of(const Plan& plan,
                                   std::shared_ptr<PlanPrograms> training = nullptr);
  const Graph& graph() const { return graph_; }
  const Cluster& cluster() const { return cluster_; }

 private:
  const Graph& graph_;
  const Cluster& cluster_;
  const BackendTraits traits_;
  struct Measured {
    std::shared_ptr<PlanPrograms> programs, training;
  };
  Measured last_, before_;
};

}  // namespace shardrun
