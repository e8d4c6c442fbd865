// Planning: strategies of a folded Graph, one joint Problem, its solution, and the Plan that
// follows.
#include "planner/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/clock.h"
#include "planner/constraints.h"
#include "planner/narrowing.h"
#include "planner/partial_kinds.h"
#include "planner/reshard.h"
#include "planner/roles.h"
#include "planner/search_space.h"

namespace shardrun {
namespace {

/// Strategies of a node that HiGHS and the local search are given at most, where message passing
/// alone does not find a plan that is good enough.
constexpr size_t kMostForSolver = 64;
constexpr int kMemoryRounds = 8;
constexpr double kPlanGap = 1e-3;

/// All times here are processor time: what is planned does not depend on how busy the machine is.
double since(double begin) { return thread_seconds() - begin; }

class Planner {
 public:
  Planner(const Graph& graph, const Mesh& mesh, const Cluster& cluster, const PlanOptions& options,
          RuleCache& rules)
      : graph_(graph),
        mesh_(mesh),
        cluster_(cluster),
        options_(options),
        rules_(rules),
        times_(mesh, cluster),
        constraints_(graph, mesh, options.planner, options.requests, options.pinned) {}

  Plan run(PlanReport& report) {
    std::map<std::string, Sharding> apart = constraints_.pinned();
    apart.insert(options_.avoided.begin(), options_.avoided.end());
    folding_ = fold(graph_, apart);
    report.nodes = static_cast<int>(graph_.nodes().size());
    report.folded_nodes =
        static_cast<int>(std::count_if(folding_.classes.begin(), folding_.classes.end(),
                                       [](const Folding::Class& c) { return !c.nodes.empty(); }));
    auto begin = thread_seconds();
    const int runs_before = rules_.kernel_runs();
    find_rules();
    report.discovery_seconds = since(begin);
    report.kernel_runs = rules_.kernel_runs() - runs_before;

    begin = thread_seconds();
    SearchSpace all = enumerate(mesh_, cluster_);
    constraints_.apply(folding_, class_rules_, all);
    drop_avoided(all);
    report.build_seconds = since(begin);
    std::optional<Plan> plan = solve(all, constraints_.regathers_weights(), report);
    if (scarce_ && baseline_names(options_.planner) == 0) {
      PlanReport its_report = report;
      std::optional<Plan> other = solve(std::move(all), true, its_report);
      if (other && (!plan || other->seconds < plan->seconds)) {
        plan = std::move(other);
        its_report.lower_bound = std::min(its_report.lower_bound, report.lower_bound);
        report = its_report;
      }
    }
    SR_REQUIRE(plan, out_of_memory, "model '", graph_.name, "' on mesh ", mesh_.to_string(),
               ": the smallest plan found needs ", least_bytes_, " bytes a rank, the limit is ",
               options_.memory_limit, "; allow more memory, use more ranks or a smaller batch");
    return *plan;
  }

 private:
  void drop_avoided(SearchSpace& space) const {
    for (const auto& [name, sharding] : options_.avoided) {
      const ValueId id = graph_.find(name);
      SR_REQUIRE(id != kNoValue, invalid_input, "avoided value '", name, "' is not in the graph");
      const Value& value = graph_.value(id);
      size_t result = 0;
      int c = folding_.class_of_value[static_cast<size_t>(id)];
      if (value.role == Role::computed) {
        const std::vector<ValueId>& outputs = graph_.node(value.producer).outputs;
        result =
            static_cast<size_t>(std::find(outputs.begin(), outputs.end(), id) - outputs.begin());
        c = folding_.class_of_node[static_cast<size_t>(value.producer)];
      }
      std::vector<Strategy>& strategies = space.strategies[static_cast<size_t>(c)];
      if (strategies.empty()) continue;  // a held value's come later
      std::erase_if(strategies, [&](const Strategy& s) { return s.out[result] == sharding; });
      SR_REQUIRE(!strategies.empty(), invalid_input, "value '", name,
                 "' can lie in no other way than ", to_string(sharding, mesh_));
    }
  }

  const Node& example(const Folding::Class& members) const { return graph_.node(members.nodes[0]); }

  void find_rules() {
    class_rules_.resize(folding_.classes.size());
    if (mesh_.size() == 1) return;  // nothing can be cut
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      if (folding_.classes[c].nodes.empty()) continue;
      const Node& node = example(folding_.classes[c]);
      class_rules_[c] = rules_.rule(node, graph_.types(node.inputs));
    }
    drop_useless_partials(graph_, folding_, constraints_.pinned(), class_rules_);
  }

  SearchSpace enumerate(const Mesh& mesh, const Cluster& cluster) const {
    SearchSpace space;
    space.reshards_updates = constraints_.reshards_updates();
    space.strategies.resize(folding_.classes.size());
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      if (folding_.classes[c].nodes.empty()) continue;
      const Node& node = example(folding_.classes[c]);
      space.strategies[c] =
          enumerate_strategies(node, graph_.types(node.inputs), graph_.types(node.outputs),
                               class_rules_[c], mesh, cluster, constraints_.leaves_empty());
    }
    return space;
  }

  /// Time to make all the copies of a value that its readers want, as partition does it: one after
  /// the other, each from the copy there is that is the cheapest to start from. Shardings and type
  /// are times_' numbers.
  double hand_out_seconds(int type, int produced, const std::vector<int>& wanted) {
    std::vector<int> copies{produced};
    double sum = 0;
    for (int sharding : wanted) {
      if (std::find(copies.begin(), copies.end(), sharding) != copies.end()) continue;
      const std::vector<ReshardStep>* best = nullptr;
      double least = kInfeasible;
      for (int copy : copies) {
        const std::vector<ReshardStep>& steps = times_.steps(type, copy, sharding);
        if (reshard_seconds(steps) >= least) continue;
        least = reshard_seconds(steps);
        best = &steps;
      }
      for (const ReshardStep& step : *best) {
        const int after = times_.number_of(step.after);
        if (std::find(copies.begin(), copies.end(), after) != copies.end()) continue;
        copies.push_back(after);
        sum += step.seconds;
      }
    }
    return sum;
  }

  Plan extract(const SearchSpace& space, const Solution& solution) {
    Plan plan;
    plan.mesh = mesh_;
    plan.planner = options_.planner == "auto" ? "ilp" : options_.planner;
    plan.model_hash = structural_hash(graph_);
    std::vector<std::vector<int>> wanted(graph_.values().size());  // in the order of use
    const auto regathered = [&](ValueId id) {
      return !space.regathered.empty() && space.regathered[static_cast<size_t>(id)];
    };
    const auto want = [&](ValueId id, int sharding) {
      wanted[static_cast<size_t>(id)].push_back(sharding);
    };
    std::vector<std::vector<int>> numbers(space.strategies.size());  // of the operands
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      for (const Sharding& in : space.strategies[c][static_cast<size_t>(solution[c])].in)
        numbers[c].push_back(times_.number_of(in));
    }
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const size_t c = static_cast<size_t>(folding_.class_of_node[n]);
      const Strategy& s = space.strategies[c][static_cast<size_t>(solution[c])];
      plan.nodes[node.name] = s.node_plan();
      plan.compute_seconds += s.seconds - s.exchange_seconds;
      plan.comm_seconds += s.exchange_seconds;
      for (size_t r = 0; r < node.outputs.size(); ++r)
        plan.values[graph_.value(node.outputs[r]).name] = s.out[r];
      for (size_t k = 0; k < node.inputs.size(); ++k) want(node.inputs[k], numbers[c][k]);
    }
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      if (folding_.class_of_value[v] < 0) continue;
      const size_t c = static_cast<size_t>(folding_.class_of_value[v]);
      plan.values[graph_.values()[v].name] =
          space.strategies[c][static_cast<size_t>(solution[c])].out[0];
    }
    const auto want_whole = [&](ValueId id) {
      want(id, times_.number_of(Sharding::replicated(graph_.type(id).shape.size())));
    };
    for (ValueId id : graph_.outputs) want_whole(id);
    for (const auto& [name, id] : graph_.metrics) want_whole(id);
    for (const auto& [held, next] : graph_.updates)
      want(next, times_.number_of(plan.values.at(graph_.value(held).name)));
    std::map<std::vector<int>, double> known;  // by type, what is produced, what is wanted
    for (size_t v = 0; v < wanted.size(); ++v) {
      if (wanted[v].empty()) continue;
      const Value& value = graph_.values()[v];
      const int type = times_.number_of(value.type),
                produced = times_.number_of(plan.values.at(value.name));
      std::vector<int> key{type, produced};
      key.insert(key.end(), wanted[v].begin(), wanted[v].end());
      const bool anew = regathered(static_cast<ValueId>(v)) &&
                        std::any_of(wanted[v].begin(), wanted[v].end(),
                                    [&](int sharding) { return sharding != produced; });
      if (anew) plan.regathered.insert(value.name);
      key.push_back(anew ? -1 : 0);
      const auto [it, fresh] = known.emplace(std::move(key), 0.0);
      if (fresh && anew) {
        for (int sharding : wanted[v]) it->second += times_.seconds(type, produced, sharding);
      } else if (fresh) {
        it->second = hand_out_seconds(type, produced, wanted[v]);
      }
      plan.comm_seconds += it->second;
    }
    plan.seconds = plan.compute_seconds + plan.comm_seconds;
    return plan;
  }

  struct Attempt {
    std::optional<Solution> solution, smallest;
    double cost = kInfeasible, lower_bound = -kInfeasible;
  };

  /// The cheapest choice whose claims stay within `limit` (0: no limit). Message passing over all
  /// strategies first; where the gap that it leaves is too large, the solver gets the strategies
  /// with the least slack. The bound holds for all strategies.
  Attempt attempt(const FactoredProblem& problem, int64_t limit, const Solution* start,
                  double seconds, PlanReport& report) {
    Attempt out;
    const std::optional<Narrowed> narrowed = narrow(problem, {kPlanGap, seconds, limit, start});
    if (!narrowed) return out;
    out.solution = narrowed->best;
    out.smallest = narrowed->smallest;
    out.cost = narrowed->cost;
    out.lower_bound = narrowed->lower_bound;
    report.solver = "bound";
    if (options_.planner != "beam" && narrowed->gap() <= kPlanGap) return out;
    bool all = true;
    const Kept kept = most_promising(problem, *narrowed, limit > 0, all);
    Problem left = dense(restricted(problem, kept));
    if (limit > 0) left.memory_limit = limit;
    SolveOptions options;
    options.seconds = seconds;
    options.processor_time = true;
    options.seed = options_.seed;
    options.gap = kPlanGap;
    const std::optional<Solution> known =
        narrowed->best ? choices_in(*narrowed->best, kept) : std::nullopt;
    if (known) options.start = &*known;
    const SolveResult result =
        options_.planner == "beam" ? solve_beam(left, options) : solve_ilp(left, options);
    report.solver = result.solver;
    if (result.solution && (result.cost < out.cost || options_.planner == "beam")) {
      out.solution = expanded(*result.solution, kept);
      out.cost = result.cost;
    }
    if (result.tightest) out.smallest = expanded(*result.tightest, kept);
    // What was removed cannot be in anything that is cheaper than what was known then.
    if (all && options_.planner != "beam")
      out.lower_bound = std::max(out.lower_bound, std::min(result.lower_bound, narrowed->cost));
    out.lower_bound = std::min(out.lower_bound, out.cost);
    return out;
  }

  /// Of each node's kept strategies those with the least slack, the best solution's among them;
  /// where memory is scarce, a third are those with the smallest results. `all`: is that all of
  /// them?
  Kept most_promising(const FactoredProblem& problem, const Narrowed& narrowed, bool scarce,
                      bool& all) const {
    Kept out;
    for (size_t i = 0; i < narrowed.kept.size(); ++i) {
      const std::vector<int>& kept = narrowed.kept[i];
      if (kept.size() <= kMostForSolver) {
        out.push_back(kept);
        continue;
      }
      all = false;
      std::set<int> chosen;
      for (const auto& solution : {narrowed.best, narrowed.smallest}) {
        if (solution) chosen.insert((*solution)[i]);
      }
      std::vector<size_t> order(kept.size());
      std::iota(order.begin(), order.end(), size_t{0});
      const auto take = [&](size_t most, const auto& key) {
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return key(a) < key(b); });
        for (size_t k : order) {
          if (chosen.size() < most) chosen.insert(kept[k]);
        }
      };
      take(scarce ? kMostForSolver * 2 / 3 : kMostForSolver,
           [&](size_t k) { return narrowed.slack[i][k]; });
      take(kMostForSolver, [&](size_t k) {
        int64_t bytes = 0;
        for (const Problem::Claim& claim : problem.nodes[i].claims)
          bytes += claim.bytes[static_cast<size_t>(kept[k])];
        return bytes;
      });
      out.emplace_back(chosen.begin(), chosen.end());
    }
    return out;
  }

  static std::optional<Solution> choices_in(const Solution& solution, const Kept& kept) {
    Solution out;
    for (size_t i = 0; i < solution.size(); ++i) {
      const auto found = std::lower_bound(kept[i].begin(), kept[i].end(), solution[i]);
      if (found == kept[i].end() || *found != solution[i]) return std::nullopt;
      out.push_back(static_cast<int>(found - kept[i].begin()));
    }
    return out;
  }

  /// The additive memory of the problem leaves out resharded copies and workspaces and cannot know
  /// how buffers share an arena. So a solution is measured by the arena that it would have, and if
  /// that is too large the additive limit is tightened by the ratio and the problem solved again.
  /// nullopt if nothing that was found fits.
  /// `regather`: weights that are gathered are gathered for each reader, and hold memory no longer.
  std::optional<Plan> solve(SearchSpace space, bool regather, PlanReport& report) {
    auto begin = thread_seconds();
    if (regather) space.regathered = made_of_weights(graph_);
    add_value_strategies(space, graph_, folding_, constraints_.pinned());
    constraints_.restrict_held(space, folding_);
    drop_avoided(space);
    const FactoredProblem problem = build_problem(space, graph_, folding_, mesh_, times_);
    report.build_seconds += since(begin);
    begin = thread_seconds();
    const int64_t limit = options_.memory_limit;
    int64_t additive_limit = 0;
    std::optional<Solution> start;
    // First as if memory were no matter: mostly it is none.
    for (int round = 0; round < kMemoryRounds; ++round) {
      const double seconds = std::max(1.0, options_.solve_seconds - since(begin));
      const Attempt found =
          attempt(problem, additive_limit, start ? &*start : nullptr, seconds, report);
      report.cost = found.cost;
      if (round <= 1) report.lower_bound = found.lower_bound;
      report.solve_seconds = since(begin);
      const std::optional<Solution>& solution = found.solution ? found.solution : found.smallest;
      if (!solution) {
        SR_REQUIRE(limit > 0, internal, "no plan on mesh ", mesh_.to_string(), " is allowed");
        return std::nullopt;
      }
      Plan plan = extract(space, *solution);
      const int64_t additive = peak_bytes(problem, *solution);
      plan.bytes = options_.arena_bytes ? options_.arena_bytes(plan) : additive;
      if (limit <= 0 || plan.bytes <= limit) return plan;
      scarce_ = true;
      least_bytes_ = std::min(least_bytes_, plan.bytes);
      if (!found.solution) return std::nullopt;
      start = solution;
      additive_limit = additive_limit == 0
                           ? limit
                           : static_cast<int64_t>(
                                 static_cast<double>(std::min(additive, additive_limit)) *
                                 (static_cast<double>(limit) / static_cast<double>(plan.bytes)));
    }
    return std::nullopt;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  RuleCache& rules_;
  ReshardTimes times_;
  Constraints constraints_;
  Folding folding_;
  std::vector<SpmdRule> class_rules_;
  bool scarce_ = false;  // some plan did not fit
  int64_t least_bytes_ = std::numeric_limits<int64_t>::max();
};

}  // namespace

Plan plan_shardings(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                    const PlanOptions& options, RuleCache& rules, PlanReport* report) {
  SR_REQUIRE(options.planner == "auto" || options.planner == "ilp" || options.planner == "beam" ||
                 baseline_names(options.planner) > 0,
             invalid_input, "planner '", options.planner,
             "' is not known; known are auto, ilp, beam, dp, zero1, zero2, fsdp, megatron, "
             "megatron-sp and, one for each mesh axis, two or more of the last six joined by +");
  PlanReport unused;
  PlanReport& filled = report != nullptr ? *report : unused;
  Plan plan = Planner(graph, mesh, cluster, options, rules).run(filled);
  filled.distinct_rules = rules.distinct_rules();
  return plan;
}

}  // namespace shardrun
