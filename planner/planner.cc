// Planning: one search, and where memory is scarce searches of baselines, with values computed
// again, and for the least that a rank can hold.
#include "planner/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "graph/passes/recompute.h"
#include "planner/hints.h"
#include "planner/merged_axes.h"
#include "planner/plan_search.h"
#include "planner/recompute.h"

namespace shardrun {
namespace {

/// Where memory leaves more than this unproven, the baselines are tried as well.
constexpr double kWideGap = 1e-2;
/// Where memory costs more than this, recomputing is tried as well, a few times with what was
/// beside the values the last time.
constexpr double kWorthRecomputing = 1e-3;
constexpr int kRecomputeRounds = 6;
/// What needs so many times the limit will not fit with more that is computed again.
constexpr double kHopeless = 1.5;
/// A refusal names a limit that is this close to one that nothing was found for.
constexpr double kClose = 1.03;
/// While none has failed, the next limit that is tried is this fraction of the least that was
/// found.
constexpr double kLess = 0.8;
constexpr int kLeastRounds = 8;
/// Each of them is looked at so often, for so long.
constexpr int kProbes = 2;
constexpr double kProbeSeconds = 0.1;
/// On more, strategies are combined from plans of meshes with so many.
constexpr int kMostSearchedAxes = 3;

/// As a rank holds them under a plan.
ValueBytes local_bytes(const Graph& graph, const Plan& plan) {
  ValueBytes out = whole_bytes(graph);
  for (size_t v = 0; v < out.size(); ++v) {
    const Value& value = graph.values()[v];
    const auto lies = plan.values.find(value.name);
    if (out[v] == 0 || lies == plan.values.end()) continue;
    out[v] = max_local_bytes(value.type, lies->second, plan.mesh);
  }
  return out;
}

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
    keep_all();
    if (plan_ && plan_->hidden_seconds > 0 && (is_free() || kind_ == PlannerKind::mcts))
      hide_sums();
    const bool memory_costs_time =
        !plan_ || unlimited_bound_ < report_.cost * (1 - kWorthRecomputing);
    if (may_recompute() && limited_ && memory_costs_time) compute_again();
    if (!plan_ && kind_ != PlannerKind::plain_ilp) look_for_least();
    if (!plan_) take_smallest();
    if (!plan_) refuse();
    report_.distinct_rules = rules_.distinct_rules();
    report_.kept_rules = rules_.kept_rules();
    return *plan_;
  }

 private:
  bool is_free() const { return kind_ == PlannerKind::automatic || kind_ == PlannerKind::ilp; }
  bool too_many_axes() const {
    int axes = 0;
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) axes += mesh_.axis_size(axis) > 1;
    return (is_free() || kind_ == PlannerKind::beam || kind_ == PlannerKind::mcts ||
            kind_ == PlannerKind::mcts_arguments) &&
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
      PlanSearch search(graph_, merged.mesh, cluster_, coarse, rules_);
      PlanReport its;
      const std::optional<Plan> plan = search.run(its);
      add_time(its);
      const auto add = [&](const Plan& found) {
        for (const auto& [name, node] : found.nodes) pool_[name].push_back(refined(node, merged));
      };
      if (plan) add(*plan);
      if (search.smallest()) add(search.smallest()->plan);
    }
    options_.pool = &pool_;
    report_.has_bound = false;
  }

  bool may_recompute() const { return options_.recompute && !graph_.updates.empty(); }

  /// The fastest so far, with what its search says.
  void offer(const std::optional<Plan>& plan, const PlanReport& its) {
    if (!plan || (plan_ && plan_->seconds <= plan->seconds)) return;
    plan_ = plan;
    report_.nodes = its.nodes;
    report_.folded_nodes = its.folded_nodes;
    report_.solver = its.solver;
    report_.cost = its.cost;
    report_.lower_bound = std::min(unlimited_bound_, its.cost);
  }
  void add_time(const PlanReport& its) {
    report_.kernel_runs += its.kernel_runs;
    report_.discovery_seconds += its.discovery_seconds;
    report_.build_seconds += its.build_seconds;
    report_.solve_seconds += its.solve_seconds;
  }

  /// The planner's own search; where memory leaves much unproven, the baselines as well.
  void keep_all() {
    PlanSearch own(graph_, mesh_, cluster_, options_, rules_);
    plan_ = own.run(report_);
    note_kept(own.smallest());
    limited_ = own.limited();
    held_bytes_ = own.held_bytes();
    unlimited_bound_ = own.unlimited_bound();
    const double gap = plan_ && report_.cost > 0 ? 1 - report_.lower_bound / report_.cost : 1;
    if (!is_free() || options_.pool != nullptr || !options_.tactics.empty() || !limited_ ||
        graph_.updates.empty() || gap <= kWideGap)
      return;
    for (const std::string& name : baselines_of(mesh_)) try_baseline(name);
  }

  /// Where gradients are summed beside kernels, the search looks again as if that took no time.
  void hide_sums() {
    PlanOptions hidden = options_;
    hidden.exposed = 0;
    PlanSearch search(graph_, mesh_, cluster_, hidden, rules_);
    PlanReport its;
    const std::optional<Plan> plan = search.run(its);
    add_time(its);
    note_kept(search.smallest());
    if (!plan || plan->seconds >= plan_->seconds) return;
    offer(plan, its);
    report_.lower_bound = its.lower_bound;
  }

  /// Looks for the plan of fewest bytes, and where that fits, for the fastest that does.
  void try_baseline(const std::string& name) {
    PlanOptions other = options_;
    other.planner = name;
    other.memory_limit = 1;
    PlanReport tight, its;
    try {
      PlanSearch least(graph_, mesh_, cluster_, other, rules_);
      least.run(tight);
      add_time(tight);
      const std::optional<LaidOut>& found = least.smallest();
      if (!found) return;
      keep_smaller(least_baseline_, found);
      if (found->plan.bytes > options_.memory_limit) return;
      other.memory_limit = options_.memory_limit;
      PlanSearch baseline(graph_, mesh_, cluster_, other, rules_);
      offer(baseline.run(its), its);
      add_time(its);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::invalid_input) throw;  // a request contradicts it
    }
  }

  /// The plan that takes the least time if memory is no matter.
  const std::optional<LaidOut>& loose() {
    if (looked_loose_) return loose_;
    looked_loose_ = true;
    PlanOptions free = options_;
    free.memory_limit = 0;
    PlanSearch search(graph_, mesh_, cluster_, free, rules_);
    PlanReport its;
    search.run(its);
    add_time(its);
    loose_ = search.smallest();
    return loose_;
  }

  /// Under which it is chosen what to compute again: the plan that takes the least time, and the
  /// one of the fewest bytes that keeps all. Of what is cut so, less need be computed again.
  std::vector<LaidOut> bases() {
    std::vector<LaidOut> out;
    if (loose()) out.push_back(*loose());
    if (smallest_kept_ && (out.empty() || smallest_kept_->plan.values != out[0].plan.values))
      out.push_back(*smallest_kept_);
    return out;
  }

  /// Plans that compute some of the forward pass again, instead of what was found if that does not
  /// fit, or takes longer.
  void compute_again() {
    const auto is_fast = [&] {
      return plan_ && loose() && plan_->seconds <= loose()->plan.seconds * (1 + kWorthRecomputing);
    };
    for (const LaidOut& base : bases()) {
      if (is_fast()) return;
      PlanReport its;
      offer(computed_again(base, options_, kRecomputeRounds, its), its);
    }
  }

  /// The step with what is computed again, of what a base keeps too much for its limit, planned
  /// like any other. nullopt: nothing that fits was found.
  std::optional<Plan> computed_again(const LaidOut& base, PlanOptions again, int rounds,
                                     PlanReport& report) {
    const int64_t limit = again.memory_limit;
    const ValueBytes bytes = local_bytes(graph_, base.plan);
    const std::vector<int64_t> alive = bytes_alive(graph_, bytes);
    // What persists, workspaces, and the gaps between buffers.
    int64_t overhead = base.plan.bytes - *std::max_element(alive.begin(), alive.end());
    for (int round = 0; round < rounds; ++round) {
      std::set<std::string> chosen =
          choose_recomputed(graph_, bytes, base.node_seconds, limit - overhead);
      if (chosen.empty() || chosen == again.recomputed) return std::nullopt;
      again.recomputed = std::move(chosen);
      const Graph step = with_recomputed(graph_, again.recomputed);
      PlanSearch search(step, mesh_, cluster_, again, rules_);
      report = {};
      const std::optional<Plan> plan = search.run(report);
      add_time(report);
      const std::optional<LaidOut>& smallest = search.smallest();
      note(smallest);
      if (plan || !smallest || smallest->plan.bytes <= limit ||
          static_cast<double>(smallest->plan.bytes) > kHopeless * static_cast<double>(limit))
        return plan;
      overhead += smallest->plan.bytes - limit;
    }
    return std::nullopt;
  }

  static void keep_smaller(std::optional<LaidOut>& known, const std::optional<LaidOut>& found) {
    if (found && (!known || found->plan.bytes < known->plan.bytes)) known = found;
  }
  void note(const std::optional<LaidOut>& found) { keep_smaller(smallest_, found); }
  void note_kept(const std::optional<LaidOut>& found) {
    keep_smaller(smallest_kept_, found);
    note(found);
  }

  /// The plan that needs least: it is taken if it fits, and its bytes are what a refusal names.
  /// What is found does not depend on the limit that was asked for, so a limit of so many bytes
  /// will do.
  void look_for_least() {
    smallest_ = smallest_kept_ = least_baseline_;
    if (may_recompute()) {
      note_kept(loose());
      try_limits_below();
    } else {
      look_for_smallest();
    }
  }

  /// Limits below the least that was found, until one that is close to it is not met.
  void try_limits_below() {
    const std::vector<LaidOut> from = bases();
    double missed = 0;
    for (int round = 0; round < kLeastRounds && smallest_; ++round) {
      const auto least = static_cast<double>(smallest_->plan.bytes);
      const double limit =
          missed > 0 ? std::min(std::sqrt(missed * least), least / kClose) : kLess * least;
      PlanOptions probe = options_;
      probe.memory_limit = static_cast<int64_t>(limit);
      probe.solve_seconds = std::min(options_.solve_seconds, kProbeSeconds);
      for (const LaidOut& base : from) {
        PlanReport its;
        if (static_cast<double>(smallest_->plan.bytes) > limit)
          (void)computed_again(base, probe, kProbes, its);
      }
      if (static_cast<double>(smallest_->plan.bytes) <= limit) continue;
      if (limit * kClose >= least) return;
      missed = limit;
    }
  }

  /// With all values kept, as if there were no memory at all.
  void look_for_smallest() {
    PlanOptions tight = options_;
    tight.memory_limit = 1;
    PlanSearch search(graph_, mesh_, cluster_, tight, rules_);
    PlanReport its;
    search.run(its);
    add_time(its);
    note_kept(search.smallest());
  }

  /// What was found for less memory fits after all.
  void take_smallest() {
    if (!smallest_ || smallest_->plan.bytes > options_.memory_limit) return;
    PlanReport its;
    its.cost = smallest_->plan.seconds;
    offer(smallest_->plan, its);
  }

  [[noreturn]] void refuse() const {
    if (smallest_) report_.least_bytes = smallest_->plan.bytes;
    const std::string what = str("model '", graph_.name, "' on mesh ", mesh_.to_string(), ": "),
                      held = str(" (what persists alone comes to ", held_bytes_,
                                 " at least); allow more memory, ");
    SR_REQUIRE(smallest_, out_of_memory, what, "the search ended after ", options_.solve_seconds,
               " s without a plan that fits; the limit is ", options_.memory_limit, " bytes a rank",
               held, "or a longer search with --plan-seconds");
    fail(ErrorKind::out_of_memory, what, "a plan that is sure to be found needs ",
         smallest_->plan.bytes, " bytes a rank, the limit is ", options_.memory_limit, held,
         "use more ranks or a smaller batch");
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  PlanOptions options_;
  StrategyPool pool_;
  const PlannerKind kind_ = *planner_named(options_.planner);
  RuleCache& rules_;
  PlanReport& report_;
  std::optional<Plan> plan_;
  std::optional<LaidOut> loose_;
  std::optional<LaidOut> smallest_, smallest_kept_;  // the latter computes nothing again
  std::optional<LaidOut> least_baseline_;            // of all baselines the plan of fewest bytes
  bool limited_ = false, looked_loose_ = false;
  double unlimited_bound_ = 0;
  int64_t held_bytes_ = 0;
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
