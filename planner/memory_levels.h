// MemoryLevels: a step's plans for less and less memory, whichever limit they are wanted for.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "planner/plan_search.h"
#include "planner/planner.h"

namespace shardrun {

/// Looks for plans at levels: numbers of bytes that follow from what the plan without a limit
/// needs, and not from the limit that is asked for. Each level is looked at by several searches:
/// one keeps all that the forward pass makes, others compute more and more of it again. Each goes
/// on from what it found at the level above. So a higher limit sees what a lower one sees, and no
/// plan of it takes longer.
class MemoryLevels {
 public:
  /// All must outlive this. Seconds are added to `report`.
  MemoryLevels(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
               const PlanOptions& options, RuleCache& rules, PlanReport& report);

  /// Solves as if memory were no matter; with `hide_sums` where something is hidden beside kernels
  /// also as if sums of gradients took no time. Is the faster plan within the limit?
  bool start(bool hide_sums);
  /// Looks at the limit itself and nothing else.
  void look_at_limit();
  /// Goes down the levels for as long as plans within the limit may get better.
  void descend();

  /// Of all plans that are within the limit the fastest.
  const std::optional<LaidOut>& fastest() const { return fastest_; }
  /// Of all plans the one of the fewest bytes.
  const std::optional<LaidOut>& smallest() const { return smallest_; }
  /// No plan that keeps all and is within the limit costs less.
  double bound();
  /// What persists comes to at least so much on a rank, in any plan.
  int64_t held_bytes() const { return searches_.front().search->held_bytes(); }

 private:
  struct Search {
    std::set<std::string> recomputed;
    PlanOptions options;
    std::unique_ptr<const Graph> step;  // null: the graph itself
    std::unique_ptr<PlanSearch> search;
    std::optional<LaidOut> smallest;  // of its plans
    double seconds = 0;               // of its fastest plan at the present level; infinite: none
    double missed = 0;                // bytes for which find_smallest() found none
    bool dropped = false;
  };

  Search& add(std::set<std::string> recomputed, double exposed);
  void solve(Search& search, bool lays_out);
  void note(Search& of, const LaidOut& plan);
  void add_recomputing(int64_t target);
  void look_at(int64_t target);
  void look_between(int64_t target);
  void start_again();
  void find_smallest();
  void squeeze(Search& search, bool closely);
  std::set<std::string> chosen_for(const LaidOut& base, int64_t target) const;
  bool known(const std::set<std::string>& recomputed) const;
  bool may_recompute() const { return options_.recompute && !graph_.updates.empty(); }

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  RuleCache& rules_;
  PlanReport& report_;
  std::list<Search> searches_;    // the first keeps all
  std::optional<LaidOut> first_;  // without a limit
  std::optional<LaidOut> fastest_, smallest_;
  std::optional<LaidOut> level_best_;  // the fastest at the present level
  double exposed_ = 1;                 // PlanOptions::exposed where something is computed again
  int64_t level_ = 0;
};

}  // namespace shardrun
