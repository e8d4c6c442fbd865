// The planner: Graph, Mesh and Cluster in, Plan out.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "graph/plan.h"
#include "planner/cost/cluster.h"
#include "planner/meshes/mesh_tables.h"
#include "planner/planner_choice.h"
#include "planner/rules/discovery.h"
#include "planner/rules/numbered_rows.h"
#include "planner/schedule/propagate.h"
#include "planner/solver/solver.h"
#include "program/memory.h"

namespace shardrun {

struct Strategy;  // planner/space/strategy.h

/// Strategies by node name. What a search is limited to, where there are too many to list.
using StrategyPool = std::map<std::string, std::vector<NodePlan>>;

struct PlanOptions {
  PlannerChoice planner = {};  // parse_planner
  int64_t memory_limit = 0;    // arena bytes a rank; 0: not limited
  int64_t asked_limit = 0;     // what a refusal says that the limit is; 0: memory_limit
  double solve_seconds = 10;   // of work of the search (planner/solver/deadline.h)
  uint64_t seed = 0;
  /// Of a Schedule, in order (planner/schedule/schedule.h): axes that they name hold what they say,
  /// others nothing.
  std::vector<std::string> tactics = {};
  /// Throws where propagation stops at a node (PlanReport::unresolved).
  bool strict = false;
  /// How values lie, operands are read and nodes are cut: "REGEX=SHARDING" and other forms
  /// (planner/space/requests.h). Those with a ? in front are hints (planner/hints.h).
  std::vector<std::string> requests = {};
  /// Values whose Sharding is fixed beforehand, by name (an eval program takes its parameters as
  /// the training plan left them).
  std::map<std::string, Sharding> pinned = {};
  /// Shardings that these values must not have: what would the next best be?
  std::map<std::string, Sharding> avoided = {};
  /// No rank sums a part of what makes one number: every number comes about by the same additions
  /// in the same order under every plan. (A table of which ranks hold rows may be looked up in
  /// parts: all but one of them add zeros.)
  bool whole_sums = false;
  /// What batch inputs hold in every step, where that is known: rows that their numbers name can
  /// then be exchanged one by one (planner/rules/numbered_rows.h).
  InputContents contents = nullptr;
  /// The arena of the fullest rank under a plan: partition + place_memory with the backend's
  /// workspaces; or of the first rank that is found to take more than `enough` bytes. Given by the
  /// caller, because the planner knows no backend.
  std::function<ArenaUse(const Plan&, int64_t enough)> arena_use = nullptr;
  /// Corrects a plan's times by the steps that ranks run under it: which sums are one call, and
  /// what overlaps with kernels. The search knows neither exactly. Null: nothing. Given by the
  /// caller, as arena_use is.
  std::function<void(Plan&)> retime = nullptr;
  /// The same of one that fits, with what it will keep where memory is left: takes longer, so only
  /// plans that may be the fastest are timed so. Null: nothing.
  std::function<void(Plan&)> retime_kept = nullptr;
  /// What the search takes for the fraction of gradients' sums that is not hidden behind kernels
  /// (planner/reshard/sum_price.h). Several are tried where something is hidden.
  double exposed = 1;
  /// The plan of the fewest bytes that is found, if these are within the limit, not the fastest.
  bool least = false;
  /// May results of the forward pass be computed again in the backward pass, where what is kept is
  /// too much, or where that takes less time than cutting it (planner/recompute.h)?
  bool recompute = false;
  /// What the graph already computes again, for the plan to say: Plan::recompute.
  std::set<std::string> recomputed = {};
  /// A node takes one of these, or is whole; nullptr: any that its rule allows. Nodes that are not
  /// in it are whole.
  const StrategyPool* pool = nullptr;
  /// mcts: by class of nodes what a tree search of the same step proposed, under other prices.
  /// nullptr: it searches itself.
  const std::vector<std::vector<Strategy>>* proposed = nullptr;
  /// Of this mesh and cluster, with what another plan has found out already. nullptr: its own.
  MeshTables* tables = nullptr;
};

/// What became of a hint.
struct HintOutcome {
  std::string text;  // "?w=[-,model]"
  bool followed = false;
  /// Of one that is not: how much longer the step would take with it.
  std::optional<double> seconds = {};
  std::string why = {};  // what stands against it, with the price or instead of it
};

struct PlanReport {
  int nodes = 0, folded_nodes = 0, distinct_rules = 0, kernel_runs = 0;
  int kept_rules = 0;  // of the distinct ones, those that earlier runs have found
  // Processor time.
  double discovery_seconds = 0, build_seconds = 0, solve_seconds = 0;
  double lower_bound = 0, cost = 0;  // of the Problem; cost / lower_bound - 1 is the gap
  bool has_bound = true;             // false: only some strategies were looked at (StrategyPool)
  std::string solver;
  std::vector<Unresolved> unresolved;  // where propagation of tactics and requests stopped
  std::vector<HintOutcome> hints;      // in the order of PlanOptions::requests
  // Of a tree search: tactics of the best state that it saw, what that is predicted to take if it
  // is not searched any further, the same where nodes chose anew given each other, and how many
  // states were priced in how much processor time.
  std::vector<std::string> found_tactics;
  double found_seconds = 0, descended_seconds = 0, tree_seconds = 0;
  int64_t evaluations = 0;
  /// Where none fits: the plan that is sure to be found with as many bytes as it takes, if any was.
  std::optional<Plan> least;
};

/// Throws out_of_memory, with a limit that will do and the limit, if no plan was found that fits.
Plan plan_shardings(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                    const PlanOptions& options, RuleCache& rules, PlanReport* report = nullptr);

}  // namespace shardrun
