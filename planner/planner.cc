// Planning: one search; where memory is scarce, levels of it; and what is said where nothing fits.
#include "planner/planner.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "planner/hints.h"
#include "planner/memory_levels.h"
#include "planner/merged_axes.h"

namespace shardrun {
namespace {

/// On more, strategies are combined from plans of meshes with so many.
constexpr int kMostSearchedAxes = 3;

class Planning {
 public:
  Planning(const Graph& graph, const Mesh& mesh, const Cluster& cluster, const PlanOptions& options,
           RuleCache& rules, PlanReport& report)
      : graph_(graph),
        mesh_(mesh),
        cluster_(cluster),
        options_(options),
        rules_(rules),
        report_(report) {}

  Plan run() {
    if (too_many_axes()) fill_pool();
    MemoryLevels levels(graph_, mesh_, cluster_, options_, rules_, report_);
    const bool limited = !levels.start(is_free() || kind_ == PlannerKind::mcts);
    // What a tree search proposes depends on the limit.
    if (limited && (searches_trees() || kind_ == PlannerKind::plain_ilp)) levels.look_at_limit();
    if (limited && kind_ != PlannerKind::plain_ilp) levels.descend();
    report_.distinct_rules = rules_.distinct_rules();
    report_.kept_rules = rules_.kept_rules();
    if (!levels.fastest()) refuse(levels);
    const LaidOut& found = *levels.fastest();
    report_.nodes = found.nodes;
    report_.folded_nodes = found.folded_nodes;
    report_.solver = found.solver;
    report_.cost = found.cost;
    report_.lower_bound = found.bound;
    if (limited && report_.has_bound && found.plan.recompute == options_.recomputed)
      report_.lower_bound = std::max(found.bound, std::min(levels.bound(), found.cost));
    return found.plan;
  }

 private:
  bool is_free() const { return kind_ == PlannerKind::automatic || kind_ == PlannerKind::ilp; }
  bool searches_trees() const {
    return kind_ == PlannerKind::mcts || kind_ == PlannerKind::mcts_arguments;
  }
  bool too_many_axes() const {
    int axes = 0;
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) axes += mesh_.axis_size(axis) > 1;
    return (is_free() || kind_ == PlannerKind::beam || searches_trees()) &&
           options_.tactics.empty() && axes > kMostSearchedAxes;
  }

  /// Over many axes strategies are too many to list. Plans of meshes with fewer axes hold here as
  /// they are, and the search combines them.
  void fill_pool() {
    for (const MergedMesh& merged : merged_meshes(mesh_, kMostSearchedAxes)) {
      PlanOptions coarse = options_;
      coarse.tactics.clear();
      coarse.requests.clear();
      coarse.pinned.clear();
      coarse.avoided.clear();
      coarse.reshard_times = nullptr;
      // Claims will do: arenas and times are those of programs on the mesh itself.
      coarse.arena_use = nullptr;
      coarse.retime = nullptr;
      coarse.recompute = false;
      PlanReport its;
      MemoryLevels levels(graph_, merged.mesh, cluster_, coarse, rules_, its);
      if (!levels.start(false)) levels.descend();
      report_.kernel_runs += its.kernel_runs;
      report_.discovery_seconds += its.discovery_seconds;
      report_.build_seconds += its.build_seconds;
      report_.solve_seconds += its.solve_seconds;
      const auto add = [&](const std::optional<LaidOut>& found) {
        if (!found) return;
        for (const auto& [name, node] : found->plan.nodes)
          pool_[name].push_back(refined(node, merged));
      };
      add(levels.fastest());
      add(levels.smallest());
    }
    options_.pool = &pool_;
    report_.has_bound = false;
  }

  [[noreturn]] void refuse(const MemoryLevels& levels) const {
    report_.least_bytes = levels.smallest()->plan.bytes;
    fail(ErrorKind::out_of_memory, "model '", graph_.name, "' on mesh ", mesh_.to_string(),
         ": a plan that is sure to be found needs ", report_.least_bytes,
         " bytes a rank, the limit is ", options_.memory_limit, " (what persists alone comes to ",
         levels.held_bytes(), " at least); allow more memory, use more ranks or a smaller batch");
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  PlanOptions options_;
  StrategyPool pool_;
  const PlannerKind kind_ = *planner_named(options_.planner);
  RuleCache& rules_;
  PlanReport& report_;
};

}  // namespace

Plan plan_shardings(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                    const PlanOptions& options, RuleCache& rules, PlanReport* report) {
  check_planner(options.planner);
  PlanReport unread;
  const PlanUnder plan_under = [&](const PlanOptions& under, PlanReport& its) {
    return Planning(graph, mesh, cluster, under, rules, its).run();
  };
  return plan_with_hints(graph, mesh, options, plan_under, report != nullptr ? *report : unread);
}

}  // namespace shardrun
