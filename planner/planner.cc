// Planning: one search, and where memory is scarce searches of baselines, with values computed
// again, and for the least that a rank can hold.
#include "planner/planner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "graph/passes/recompute.h"
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

/// A search's plan, if it found one that fits, and what it knows if not.
struct Found {
  std::optional<Plan> plan;
  int64_t least_bytes = std::numeric_limits<int64_t>::max();  // of plans that were laid out
  int64_t needed_bytes = std::numeric_limits<int64_t>::max();
  bool limited = false;  // by memory
  double unlimited_bound = 0;

  void saw(const PlanSearch& search) {
    least_bytes = std::min(least_bytes, search.least_bytes());
    needed_bytes = std::min(needed_bytes, search.needed_bytes());
  }
};

bool is_free(const PlanOptions& options) {
  return options.planner == "auto" || options.planner == "ilp";
}

/// The planner's own search; where memory leaves much unproven, the baselines as well.
Found search(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
             const PlanOptions& options, RuleCache& rules, PlanReport& filled) {
  Found found;
  PlanSearch own(graph, mesh, cluster, options, rules);
  std::optional<Plan>& plan = found.plan;
  plan = own.run(filled);
  found.saw(own);
  found.limited = own.limited();
  found.unlimited_bound = own.unlimited_bound();
  const double gap = plan && filled.cost > 0 ? 1 - filled.lower_bound / filled.cost : 1;
  if (is_free(options) && options.memory_limit > 0 && !graph.updates.empty() && gap > kWideGap) {
    for (const std::string& name : baselines_of(mesh)) {
      PlanOptions other = options;
      other.planner = name;
      PlanReport its;
      try {
        PlanSearch baseline(graph, mesh, cluster, other, rules);
        std::optional<Plan> its_plan = baseline.run(its);
        found.saw(baseline);
        if (its_plan && (!plan || its_plan->seconds < plan->seconds)) {
          plan = std::move(its_plan);
          filled.cost = its.cost;
          filled.solver = its.solver;
          filled.lower_bound = own.unlimited_bound();
        }
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::invalid_input) throw;  // a request contradicts it
      }
      filled.build_seconds += its.build_seconds;
      filled.solve_seconds += its.solve_seconds;
    }
    filled.lower_bound = std::min(filled.lower_bound, filled.cost);
  }
  return found;
}

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

/// Plans that compute some of the forward pass again, instead of what was found if that does not
/// fit, or takes longer. What to compute again is chosen under the plan that takes the least time
/// if memory is no matter; the step with it is planned like any other.
void try_recomputing(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                     const PlanOptions& options, RuleCache& rules, Found& found,
                     PlanReport& filled) {
  const auto add_time = [&](const PlanReport& its) {
    filled.kernel_runs += its.kernel_runs;
    filled.discovery_seconds += its.discovery_seconds;
    filled.build_seconds += its.build_seconds;
    filled.solve_seconds += its.solve_seconds;
  };
  const int64_t limit = options.memory_limit;
  PlanOptions free = options;
  free.memory_limit = 0;
  PlanSearch unlimited(graph, mesh, cluster, free, rules);
  PlanReport its;
  const std::optional<Plan> loose = unlimited.run(its);
  add_time(its);
  const auto is_fast = [&](const std::optional<Plan>& plan) {
    return plan && plan->seconds <= loose->seconds * (1 + kWorthRecomputing);
  };
  if (!loose || is_fast(found.plan)) return;
  const ValueBytes bytes = local_bytes(graph, *loose);
  const std::vector<int64_t> alive = bytes_alive(graph, bytes);
  // What persists, workspaces, and the gaps between buffers.
  int64_t beside = loose->bytes - *std::max_element(alive.begin(), alive.end());
  PlanOptions again = options;
  // The plan's bytes where it does not fit.
  const auto attempt = [&](std::set<std::string> chosen) -> std::optional<int64_t> {
    again.recomputed = std::move(chosen);
    const Graph recomputing = with_recomputed(graph, again.recomputed);
    PlanSearch search(recomputing, mesh, cluster, again, rules);
    its = {};
    std::optional<Plan> plan = search.run(its);
    add_time(its);
    if (!plan) return search.least_bytes();
    if (found.plan && found.plan->seconds <= plan->seconds) return std::nullopt;
    found.plan = std::move(plan);
    filled.nodes = its.nodes;
    filled.folded_nodes = its.folded_nodes;
    filled.solver = its.solver;
    filled.cost = its.cost;
    filled.lower_bound = std::min(found.unlimited_bound, its.cost);
    return std::nullopt;
  };
  for (int round = 0; round < kRecomputeRounds; ++round) {
    std::set<std::string> chosen =
        choose_recomputed(graph, bytes, unlimited.node_seconds(), limit - beside);
    if (chosen.empty() || chosen == again.recomputed) break;
    const std::optional<int64_t> needed = attempt(std::move(chosen));
    if (!needed) return;
    if (*needed <= limit || *needed == std::numeric_limits<int64_t>::max()) break;
    beside += *needed - limit;
  }
}

/// The plan that needs least, of those that are looked for as if there were no memory at all.
/// `found` gets it if it fits, and its bytes in any case: what is found so does not depend on the
/// limit, so a limit of so many bytes will do.
void find_least(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                const PlanOptions& options, RuleCache& rules, Found& found, PlanReport& filled) {
  PlanOptions tight = options;
  tight.memory_limit = 1;
  found.least_bytes = std::numeric_limits<int64_t>::max();
  const auto attempt = [&](const Graph& step) {
    PlanSearch search(step, mesh, cluster, tight, rules);
    PlanReport its;
    search.run(its);
    found.saw(search);
    filled.build_seconds += its.build_seconds;
    filled.solve_seconds += its.solve_seconds;
    const std::optional<Plan>& plan = search.smallest();
    if (!plan || plan->bytes > options.memory_limit) return;
    if (found.plan && found.plan->seconds <= plan->seconds) return;
    found.plan = plan;
    filled.nodes = its.nodes;
    filled.folded_nodes = its.folded_nodes;
    filled.solver = its.solver;
    filled.cost = plan->seconds;
    filled.lower_bound = std::min(found.unlimited_bound, filled.cost);
  };
  attempt(graph);
  if (!options.recompute || graph.updates.empty()) return;
  PlanOptions free = options;
  free.memory_limit = 0;
  PlanSearch unlimited(graph, mesh, cluster, free, rules);
  PlanReport unused;
  const std::optional<Plan> loose = unlimited.run(unused);
  if (!loose) return;
  tight.recomputed =
      recompute_for_least_bytes(graph, local_bytes(graph, *loose), unlimited.node_seconds());
  attempt(with_recomputed(graph, tight.recomputed));
}

}  // namespace

Plan plan_shardings(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                    const PlanOptions& options, RuleCache& rules, PlanReport* report) {
  SR_REQUIRE(
      options.planner == "auto" || options.planner == "ilp" || options.planner == "beam" ||
          options.planner == "plain-ilp" || baseline_names(options.planner) > 0,
      invalid_input, "planner '", options.planner,
      "' is not known; known are auto, ilp, beam, plain-ilp, dp, zero1, zero2, fsdp, megatron, "
      "megatron-sp and, one for each mesh axis, two or more of the last six joined by +");
  PlanReport unused;
  PlanReport& filled = report != nullptr ? *report : unused;
  Found found = search(graph, mesh, cluster, options, rules, filled);
  const bool dear = !found.plan || found.unlimited_bound < filled.cost * (1 - kWorthRecomputing);
  if (options.recompute && found.limited && dear && !graph.updates.empty())
    try_recomputing(graph, mesh, cluster, options, rules, found, filled);
  if (!found.plan && options.planner != "plain-ilp")
    find_least(graph, mesh, cluster, options, rules, found, filled);
  const std::optional<Plan>& plan = found.plan;
  const int64_t least = found.least_bytes, needed = found.needed_bytes;
  SR_REQUIRE(plan || least < std::numeric_limits<int64_t>::max(), out_of_memory, "model '",
             graph.name, "' on mesh ", mesh.to_string(), ": the search ended after ",
             options.solve_seconds, " s without a plan that fits; the limit is ",
             options.memory_limit, " bytes a rank (the values alone come to ", needed,
             " at least); allow more memory, or a longer search with --plan-seconds");
  SR_REQUIRE(plan, out_of_memory, "model '", graph.name, "' on mesh ", mesh.to_string(),
             ": a plan that is sure to be found needs ", least, " bytes a rank, the limit is ",
             options.memory_limit, " (the values alone come to ", needed,
             " at least); allow more memory, use more ranks or a smaller batch");
  filled.distinct_rules = rules.distinct_rules();
  return *plan;
}

}  // namespace shardrun
