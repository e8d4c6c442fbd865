// Planning: strategies of a folded Graph, one joint Problem, its solution, and the Plan that
// follows.
#include "planner/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/clock.h"
#include "planner/bound.h"
#include "planner/constraints.h"
#include "planner/reshard.h"
#include "planner/roles.h"
#include "planner/search_space.h"

namespace shardrun {
namespace {

/// Strategies of a node in the joint Problem at most. Up to two axes that is nearly always all of
/// them; on three a matmul has hundreds, and the best 64 gave the same cost as the best 128 (GPT on
/// 2x2x2) in a quarter of the time.
constexpr size_t kMostOnTwoAxes = 160, kMostOnMoreAxes = 64;
constexpr int kRankingSweeps = 30;
constexpr int kMemoryRounds = 8;
constexpr double kPlanGap = 5e-3;  // the cost model is far less exact

/// All times here are processor time: what is planned does not depend on how busy the machine is.
double since(double begin) { return thread_seconds() - begin; }

/// What lies along one axis of a Sharding, on a mesh of that axis alone.
Sharding along(const Sharding& sharding, int axis) {
  Sharding result = Sharding::replicated(sharding.dims.size());
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (std::find(sharding.dims[d].begin(), sharding.dims[d].end(), axis) !=
        sharding.dims[d].end()) {
      result.dims[d] = {0};
    }
  }
  for (const auto& p : sharding.partial) {
    if (p.axis == axis) result.partial.push_back({0, p.op});
  }
  return result;
}

std::vector<Sharding> along(const std::vector<Sharding>& shardings, int axis) {
  std::vector<Sharding> result;
  for (const Sharding& s : shardings) result.push_back(along(s, axis));
  return result;
}

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
    // First as if memory were no matter: mostly it is none, and then no strategy is there for its
    // size alone.
    std::optional<Plan> plan = solve(cap(all, false), constraints_.regathers_weights(), report);
    if (scarce_ && baseline_names(options_.planner) == 0) {
      PlanReport its_report = report;
      std::optional<Plan> other = solve(cap(all, false), true, its_report);
      if (other && (!plan || other->seconds < plan->seconds)) {
        plan = std::move(other);
        its_report.lower_bound = std::min(its_report.lower_bound, report.lower_bound);
        report = its_report;
      }
    }
    if (!plan && capped_) plan = solve(cap(all, true), true, report);
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

  /// Keeps so many strategies per node, and says which by looking at each axis alone: in the
  /// Problem on that axis' own mesh, the slack of a strategy is how much more than the lower bound
  /// a plan must cost that uses it (planner/bound.h). A joint strategy's rank is the sum of its
  /// slacks over the axes; the all-replicated one always stays, and if `small`, a third are those
  /// with the smallest results. Only the ranking is by axis: what is solved is joint.
  SearchSpace cap(SearchSpace space, bool small) {
    most_ = mesh_.axis_count() <= 2 ? kMostOnTwoAxes : kMostOnMoreAxes;
    capped_ = std::any_of(space.strategies.begin(), space.strategies.end(),
                          [&](const auto& s) { return s.size() > most_; });
    if (!capped_) return space;
    if (score_.empty()) score_by_axis(space);
    for (size_t c = 0; c < space.strategies.size(); ++c) {
      if (space.strategies[c].size() > most_)
        space.strategies[c] = best_of(space.strategies[c], score_[c], c, small);
    }
    return space;
  }

  void score_by_axis(const SearchSpace& space) {
    std::vector<std::vector<double>>& score = score_;
    for (const auto& strategies : space.strategies) score.emplace_back(strategies.size(), 0.0);
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
      const Mesh alone({mesh_.axes()[static_cast<size_t>(axis)]});
      const Cluster cluster = cluster_.along(mesh_, axis);
      std::map<std::string, Sharding> pinned;
      for (const auto& [name, sharding] : constraints_.pinned())
        pinned.emplace(name, along(sharding, axis));
      SearchSpace single = enumerate(alone, cluster);
      constraints_.restrict_along(single, axis);
      add_value_strategies(single, graph_, folding_, pinned);
      ReshardTimes times(alone, cluster);
      Problem problem = build_problem(single, graph_, folding_, alone, times, false);
      // Impossible becomes very expensive: ranking needs no more, and message passing wants finite
      // costs.
      const auto tame = [](std::vector<double>& costs) {
        for (double& cost : costs) cost = std::min(cost, 1e3);
      };
      for (Problem::Node& node : problem.nodes) tame(node.cost);
      for (Problem::Edge& edge : problem.edges) tame(edge.cost);
      Bound bound(problem);
      for (int sweep = 0; sweep < kRankingSweeps; ++sweep) bound.sweep();
      for (size_t c = 0; c < folding_.classes.size(); ++c) {
        if (space.strategies[c].size() <= most_) continue;
        std::map<std::pair<std::vector<Sharding>, std::vector<Sharding>>, double> slack;
        for (size_t a = 0; a < single.strategies[c].size(); ++a) {
          const Strategy& s = single.strategies[c][a];
          slack[{s.in, s.out}] = bound.slack(static_cast<int>(c))[a];
        }
        for (size_t a = 0; a < space.strategies[c].size(); ++a) {
          const Strategy& s = space.strategies[c][a];
          const auto known = slack.find({along(s.in, axis), along(s.out, axis)});
          score[c][a] += known == slack.end() ? 1e3 : known->second;
        }
      }
    }
  }

  std::vector<Strategy> best_of(const std::vector<Strategy>& all, const std::vector<double>& score,
                                size_t c, bool small) const {
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score[a] < score[b]; });
    std::set<size_t> chosen{0};
    const Node& node = example(folding_.classes[c]);
    const size_t by_score = small ? most_ * 2 / 3 : most_;
    for (size_t a : order) {
      if (chosen.size() < by_score) chosen.insert(a);
    }
    if (small) {
      const auto bytes = [&](size_t a) {
        int64_t sum = 0;
        for (size_t r = 0; r < node.outputs.size(); ++r) {
          const TensorType& type = graph_.type(node.outputs[r]);
          sum += max_local_count(type.shape, all[a].out[r], mesh_) * size_of(type.dtype);
        }
        return sum;
      };
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return bytes(a) < bytes(b); });
      for (size_t a : order) {
        if (chosen.size() < most_) chosen.insert(a);
      }
    }
    std::vector<Strategy> result;
    for (size_t a : chosen) result.push_back(all[a]);
    return result;
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

  /// The additive memory of the Problem leaves out resharded copies and workspaces and cannot know
  /// how buffers share an arena. So a solution is measured by the arena that it would have, and if
  /// that is too large the additive limit is tightened by the ratio and the Problem solved again.
  /// nullopt if nothing that was found fits.
  /// `regather`: weights that are gathered are gathered for each reader, and hold memory no longer.
  std::optional<Plan> solve(SearchSpace space, bool regather, PlanReport& report) {
    auto begin = thread_seconds();
    if (regather) space.regathered = made_of_weights(graph_);
    add_value_strategies(space, graph_, folding_, constraints_.pinned());
    constraints_.restrict_held(space, folding_);
    drop_avoided(space);
    Problem problem = build_problem(space, graph_, folding_, mesh_, times_, true);
    report.build_seconds += since(begin);
    begin = thread_seconds();
    const double solved_before = report.solve_seconds;
    const int64_t limit = options_.memory_limit;
    if (limit > 0) problem.memory_limit = limit;
    for (int round = 0; round < kMemoryRounds; ++round) {
      SolveOptions solve_options;
      solve_options.seconds = std::max(1.0, options_.solve_seconds - since(begin));
      solve_options.processor_time = true;
      solve_options.seed = options_.seed;
      solve_options.gap = kPlanGap;
      const SolveResult result = options_.planner == "beam" ? solve_beam(problem, solve_options)
                                                            : solve_ilp(problem, solve_options);
      report.solver = result.solver;
      report.cost = result.cost;
      if (round == 0) report.lower_bound = result.lower_bound;
      report.solve_seconds = solved_before + since(begin);
      const std::optional<Solution>& solution = result.solution ? result.solution : result.tightest;
      if (!solution) {
        SR_REQUIRE(limit > 0, internal, "no plan on mesh ", mesh_.to_string(), " is allowed");
        return std::nullopt;
      }
      Plan plan = extract(space, *solution);
      const int64_t additive = evaluate(problem, *solution).peak_bytes;
      plan.bytes = options_.arena_bytes ? options_.arena_bytes(plan) : additive;
      if (limit <= 0 || plan.bytes <= limit) return plan;
      scarce_ = true;
      least_bytes_ = std::min(least_bytes_, plan.bytes);
      if (!result.solution) return std::nullopt;
      const double ratio = static_cast<double>(limit) / static_cast<double>(plan.bytes);
      problem.memory_limit = static_cast<int64_t>(
          static_cast<double>(std::min(additive, problem.memory_limit)) * ratio);
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
  std::vector<std::vector<double>>
      score_;  // class, strategy of the whole enumeration: lower is better
  size_t most_ = 0;
  bool capped_ = false, scarce_ = false;  // scarce: some plan did not fit
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
