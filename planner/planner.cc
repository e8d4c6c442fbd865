// Planning: strategies of a folded Graph, one joint Problem, its solution, and the Plan that
// follows.
#include "planner/planner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "base/clock.h"
#include "graph/passes/recompute.h"
#include "planner/constraints.h"
#include "planner/deadline.h"
#include "planner/limited_search.h"
#include "planner/partial_kinds.h"
#include "planner/recompute.h"
#include "planner/reshard.h"
#include "planner/roles.h"
#include "planner/search_space.h"

namespace shardrun {
namespace {

constexpr int kMemoryRounds = 12, kMostHalvings = 2;
/// Of the limit: claims that come to less will fit, with all that an arena holds beside.
constexpr double kAmple = 0.75;
constexpr double kPlanGap = 1e-4;
/// Where memory leaves more than this unproven, the baselines are tried as well.
constexpr double kWideGap = 1e-2;
/// Where memory costs more than this, recomputing is tried as well, a few times with what was
/// beside the values the last time.
constexpr double kWorthRecomputing = 1e-3;
constexpr int kRecomputeRounds = 6;

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
        own_times_(mesh, cluster),
        times_(options.reshard_times != nullptr ? *options.reshard_times : own_times_),
        numbered_(graph, options.contents),
        constraints_(graph, mesh, options.planner, options.requests, options.pinned) {}

  /// nullopt if none that was found fits.
  std::optional<Plan> run(PlanReport& report) {
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
    return solve(std::move(all), report);
  }

  /// Of the plans that were laid out.
  int64_t least_bytes() const {
    return smallest_ ? smallest_->bytes : std::numeric_limits<int64_t>::max();
  }
  const std::optional<Plan>& smallest() const { return smallest_; }
  /// Of all plans, whatever they need.
  double unlimited_bound() const { return unlimited_bound_; }
  /// Does what would be the best if memory were no matter not fit?
  bool limited() const { return limited_; }
  /// Of the nodes under the plan that was made last, without what brings their operands to them.
  const std::vector<double>& node_seconds() const { return node_seconds_; }
  /// Of values alone, in any plan of this search.
  int64_t needed_bytes() const { return needed_bytes_; }

 private:
  void drop_avoided(SearchSpace& space) const {
    for (const auto& [name, sharding] : options_.avoided) {
      const ValueId id = graph_.find(name);
      SR_REQUIRE(id != kNoValue, invalid_input, "avoided value '", name, "' is not in the graph");
      const auto [c, r] = origin(id);
      const auto result = static_cast<size_t>(r);
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

  /// A class's rule, with the options in which rows are exchanged if all its nodes know their
  /// numbers.
  SpmdRule rule_of(size_t c) {
    SpmdRule rule = class_rules_[c];
    std::optional<OpDef::NumberedRows> rows;
    for (NodeId id : folding_.classes[c].nodes) {
      rows = numbered_.of(graph_.node(id));
      if (!rows) return rule;
    }
    for (SpmdRule::Option& option : row_options(rule, *rows))
      rule.options.push_back(std::move(option));
    return rule;
  }

  SearchSpace enumerate(const Mesh& mesh, const Cluster& cluster) {
    SearchSpace space;
    space.reshards_updates = constraints_.reshards_updates();
    space.strategies.resize(folding_.classes.size());
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      if (folding_.classes[c].nodes.empty()) continue;
      const Node& node = example(folding_.classes[c]);
      space.strategies[c] = enumerate_strategies(
          node, graph_.types(node.inputs), graph_.types(node.outputs), rule_of(c), mesh, cluster,
          constraints_.leaves_empty(), [&](NodePlan& plan) {
            for (NodeId id : folding_.classes[c].nodes)
              numbered_.count(graph_.node(id), mesh, plan);
            return numbered_.sharers(node);
          });
    }
    return space;
  }

  /// Class of what makes or holds a value, and which of its results it is.
  std::pair<int, int> origin(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.role != Role::computed) return {folding_.class_of_value[static_cast<size_t>(id)], 0};
    const std::vector<ValueId>& outputs = graph_.node(value.producer).outputs;
    return {folding_.class_of_node[static_cast<size_t>(value.producer)],
            static_cast<int>(std::find(outputs.begin(), outputs.end(), id) - outputs.begin())};
  }

  /// `share`: a copy that one reader wants serves the others too.
  Plan extract(const SearchSpace& space, const JointProblem& joint, const Solution& solution,
               bool share) {
    Plan plan;
    plan.mesh = mesh_;
    plan.planner = options_.planner == "auto" ? "ilp" : options_.planner;
    plan.model_hash = structural_hash(graph_);
    plan.recompute = options_.recomputed;
    node_seconds_.clear();
    std::vector<std::vector<int>> wanted(graph_.values().size());  // in the order of use
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
      node_seconds_.push_back(s.seconds);
      plan.compute_seconds += s.seconds - s.exchange_seconds;
      plan.comm_seconds += s.exchange_seconds;
      for (size_t r = 0; r < node.outputs.size(); ++r)
        plan.values[graph_.value(node.outputs[r]).name] = s.out[r];
      for (size_t k = 0; k < node.inputs.size(); ++k) want(node.inputs[k], numbers[c][k]);
    }
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      if (folding_.class_of_value[v] < 0) continue;
      const size_t c = static_cast<size_t>(folding_.class_of_value[v]);
      const auto [maker, result] = joint.lies_as[c];
      const size_t chooser = maker < 0 ? c : static_cast<size_t>(maker);
      plan.values[graph_.values()[v].name] =
          space.strategies[chooser][static_cast<size_t>(solution[chooser])]
              .out[static_cast<size_t>(result)];
    }
    const auto want_whole = [&](ValueId id) {
      want(id, times_.number_of(Sharding::replicated(graph_.type(id).shape.size())));
    };
    for (ValueId id : graph_.outputs) want_whole(id);
    for (const auto& [name, id] : graph_.metrics) want_whole(id);
    for (const auto& [held, next] : graph_.updates)
      want(next, times_.number_of(plan.values.at(graph_.value(held).name)));
    std::map<std::pair<int, int>, const Hub*> hub_of;  // by class and result
    for (const Hub& hub : joint.hubs) hub_of[origin(hub.value)] = &hub;
    std::map<std::vector<int>, double> known;  // by type and all Shardings
    for (size_t v = 0; v < wanted.size(); ++v) {
      if (wanted[v].empty()) continue;
      const Value& value = graph_.values()[v];
      const int type = times_.number_of(value.type),
                produced = times_.number_of(plan.values.at(value.name));
      if (std::count(wanted[v].begin(), wanted[v].end(), produced) ==
          static_cast<std::ptrdiff_t>(wanted[v].size()))
        continue;
      int handed = -1;
      bool anew = !space.regathered.empty() && space.regathered[v];
      if (const auto hub = hub_of.find(origin(static_cast<ValueId>(v))); hub != hub_of.end()) {
        const auto choice = static_cast<size_t>(solution[static_cast<size_t>(hub->second->node)]);
        if (hub->second->shardings[choice] != produced) handed = hub->second->shardings[choice];
        anew = !share;
      }
      const auto price = [&](int from) {
        std::vector<int> key{type, produced, from, anew ? 1 : 0};
        key.insert(key.end(), wanted[v].begin(), wanted[v].end());
        const auto [it, fresh] = known.emplace(std::move(key), 0.0);
        if (fresh) it->second = times_.hand_out_seconds(type, produced, from, anew, wanted[v]);
        return it->second;
      };
      double seconds = price(handed);
      if (handed >= 0 && !anew && price(-1) <= seconds) {
        seconds = price(-1);
        handed = -1;
      }
      if (handed >= 0) plan.handed[value.name] = times_.sharding(handed);
      if (anew) plan.regathered.insert(value.name);
      plan.comm_seconds += seconds;
    }
    plan.seconds = plan.compute_seconds + plan.comm_seconds;
    return plan;
  }

  LimitedOptions::Method method() const {
    using Method = LimitedOptions::Method;
    return options_.planner == "beam"        ? Method::beam
           : options_.planner == "plain-ilp" ? Method::plain
                                             : Method::narrowing;
  }

  /// The arena of a plan, which gets its bytes.
  ArenaUse measure(Plan& plan, const FactoredProblem& problem, const Solution& solution) {
    ArenaUse use = options_.arena_use ? options_.arena_use(plan)
                                      : ArenaUse{peak_bytes(problem, solution),
                                                 bytes_over_time(problem, solution)};
    plan.bytes = use.bytes;
    if (use.bytes < least_bytes()) smallest_ = plan;
    return use;
  }

  /// The plan of a solution, if it fits. Readers share the copies that they want if memory allows
  /// that, else each gets its own from the hub's. `use`: of the latter.
  std::optional<Plan> fitting(const SearchSpace& space, const JointProblem& joint,
                              const Solution& solution, ArenaUse& use) {
    const int64_t limit = options_.memory_limit;
    const auto try_one = [&](bool share) {
      Plan plan = extract(space, joint, solution, share);
      use = measure(plan, joint.problem, solution);
      return plan;
    };
    // Laying out takes longer than all else, so what is likely comes first.
    const bool ample = static_cast<double>(peak_bytes(joint.problem, solution)) <
                       kAmple * static_cast<double>(limit);
    if (limit <= 0 || ample) {
      Plan sharing = try_one(true);
      if (limit <= 0 || sharing.bytes <= limit) return sharing;
    }
    Plan plan = try_one(false);
    if (plan.bytes > limit) return std::nullopt;
    if (!ample) {
      Plan sharing = try_one(true);
      if (sharing.bytes <= limit && sharing.seconds < plan.seconds) return sharing;
    }
    return plan;
  }

  int64_t bytes_of(const TensorType& type, const Sharding& sharding) const {
    return max_local_count(type.shape, sharding, mesh_) * size_of(type.dtype);
  }

  /// A resharding between two nodes of the problem: by the choice at each, the Shardings.
  struct Passage {
    int from = 0, to = 0;
    std::function<const Sharding&(size_t choice)> have, want;
  };

  /// Those that may run in front of a node, by operand: from what its readers are handed to what
  /// this one wants; from what it was made as to what they are handed, if this is the first.
  std::vector<std::pair<ValueId, Passage>> passages(const SearchSpace& space,
                                                    const JointProblem& joint, NodeId node) const {
    std::vector<std::pair<ValueId, Passage>> out;
    const auto reader = static_cast<size_t>(folding_.class_of_node[static_cast<size_t>(node)]);
    const std::vector<ValueId>& inputs = graph_.node(node).inputs;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto from = origin(inputs[k]);
      for (const Hub& hub : joint.hubs) {
        if (origin(hub.value) != from) continue;
        const auto handed = [this, &hub](size_t choice) -> const Sharding& {
          return times_.sharding(hub.shardings[choice]);
        };
        const auto wanted = [&space, reader, k](size_t choice) -> const Sharding& {
          return space.strategies[reader][choice].in[k];
        };
        out.push_back({inputs[k], {hub.node, static_cast<int>(reader), handed, wanted}});
        if (graph_.value(inputs[k]).role != Role::computed || !is_first_reader(node, inputs[k]))
          continue;
        const auto made = [&space, from](size_t choice) -> const Sharding& {
          return space.strategies[static_cast<size_t>(from.first)][choice]
              .out[static_cast<size_t>(from.second)];
        };
        out.push_back({inputs[k], {from.first, hub.node, made, handed}});
      }
    }
    return out;
  }

  bool is_first_reader(NodeId node, ValueId value) const {
    for (NodeId n = graph_.value(value).producer + 1; n < node; ++n) {
      const std::vector<ValueId>& inputs = graph_.node(n).inputs;
      if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return false;
    }
    return true;
  }

  /// Forbids to bring a value from `before` bytes or more to `after` or more in another Sharding.
  /// False if that was so already.
  bool forbid(FactoredProblem& problem, const TensorType& type, const Passage& passage,
              int64_t before, int64_t after) const {
    bool any = false;
    for (FactoredProblem::Edge& edge : problem.edges) {
      if (edge.from != passage.from || edge.to != passage.to) continue;
      auto matrix = std::make_shared<FactoredProblem::Matrix>(*edge.matrix);
      for (size_t a = 0; a < edge.row.size(); ++a) {
        const Sharding& have = passage.have(a);
        if (bytes_of(type, have) < before) continue;
        for (size_t b = 0; b < edge.column.size(); ++b) {
          const Sharding& want = passage.want(b);
          if (have == want || bytes_of(type, want) < after) continue;
          any = any || edge.cost(a, b) < kInfeasible;
          matrix->set(edge.row[a], edge.column[b], kInfeasible);
        }
      }
      matrix->forbids = true;
      edge.matrix = std::move(matrix);
    }
    return any;
  }

  /// What is too much at a node may be what is there for a moment in front of it: a value, the copy
  /// that it is brought into, and staging. The claims know of one of the two. Forbids such
  /// reshardings there, and of values of the same type wherever there is no more room beside the
  /// claims. False if there are none.
  bool forbid_reshardings(const SearchSpace& space, JointProblem& joint, const Solution& solution,
                          const ArenaUse& use) const {
    const int64_t limit = options_.memory_limit;
    const int64_t gaps = use.bytes - *std::max_element(use.alive.begin(), use.alive.end());
    const std::vector<int64_t> claims = bytes_over_time(joint.problem, solution);
    const size_t times = std::min(use.alive.size(), claims.size());
    bool any = false;
    for (size_t t = 0; t < times; ++t) {
      const int64_t excess = use.alive[t] + gaps - limit, beside = use.alive[t] + gaps - claims[t];
      if (excess <= 0) continue;
      for (const auto& [value, passage] : passages(space, joint, static_cast<NodeId>(t))) {
        const auto choice = [&](int node) {
          return static_cast<size_t>(solution[static_cast<size_t>(node)]);
        };
        const TensorType& type = graph_.type(value);
        const Sharding &have = passage.have(choice(passage.from)),
                       &want = passage.want(choice(passage.to));
        const int64_t before = bytes_of(type, have), after = bytes_of(type, want);
        if (have == want || 2 * (before + after) < excess) continue;
        for (size_t other = 0; other < times; ++other) {
          const std::vector<ValueId>& inputs = graph_.nodes()[other].inputs;
          if (claims[other] + beside <= limit ||
              std::none_of(inputs.begin(), inputs.end(),
                           [&](ValueId id) { return graph_.type(id) == type; }))
            continue;
          for (const auto& [id, alike] : passages(space, joint, static_cast<NodeId>(other))) {
            if (graph_.type(id) == type)
              any = forbid(joint.problem, type, alike, before, after) || any;
          }
        }
      }
    }
    return any;
  }

  /// The additive memory of the problem leaves out workspaces and what is made for one reader, and
  /// cannot know how buffers share an arena. So a solution's arena is looked at. Where that does
  /// not fit for something large that is made for one reader, that is forbidden; else the next
  /// solution must leave as much room beside its claims, node by node, as this one took. nullopt if
  /// nothing that was found fits.
  std::optional<Plan> solve(SearchSpace space, PlanReport& report) {
    auto begin = thread_seconds();
    if (constraints_.regathers_weights()) space.regathered = made_of_weights(graph_);
    space.may_hand = [&](ValueId id, const Sharding& to) { return constraints_.may_hand(id, to); };
    add_value_strategies(space, graph_, folding_, constraints_.pinned());
    constraints_.restrict_held(space, folding_);
    drop_avoided(space);
    JointProblem joint = build_problem(space, graph_, folding_, mesh_, times_);
    const FactoredProblem& problem = joint.problem;
    report.build_seconds += since(begin);
    begin = thread_seconds();
    const Deadline end(options_.solve_seconds, method() == LimitedOptions::Method::plain
                                                   ? Deadline::Clock::wall
                                                   : Deadline::Clock::work);
    const int64_t limit = options_.memory_limit;
    needed_bytes_ = least_peak(problem);
    LimitedSearch search(problem, {kPlanGap, method(), options_.seed});
    // First as if memory were no matter: mostly it is none. Then as if an arena held claims alone.
    std::vector<int64_t> room, feasible(graph_.nodes().size(), limit);
    std::optional<Solution> start;
    std::optional<Plan> best;
    int halvings = 0;
    std::vector<FactoredProblem::Edge> allowed;
    bool may_forbid = true, forbade = false;
    const auto offer = [&](std::optional<Plan> plan, const Solution& solution) {
      if (!plan || (best && best->seconds <= plan->seconds)) return;
      best = std::move(plan);
      report.cost = raw_cost(problem, solution);
    };
    for (int round = 0; round < kMemoryRounds; ++round) {
      if (round > 0 && end.passed()) break;
      const LimitedResult found = search.run(room, start ? &*start : nullptr, end.left());
      report.solver = found.solver;
      if (round == 0) unlimited_bound_ = found.lower_bound;
      // What the first two rounds know holds for all plans, while nothing is forbidden.
      if (round <= 1 && !forbade)
        report.lower_bound = std::max(report.lower_bound, found.lower_bound);
      report.solve_seconds = since(begin);
      if (!found.solution && forbade) {  // too much
        may_forbid = forbade = false;
        joint.problem.edges = allowed;
        continue;
      }
      const std::optional<Solution>& solution = found.solution ? found.solution : found.smallest;
      if (!solution) {
        SR_REQUIRE(options_.planner != "plain-ilp", invalid_input,
                   "planner 'plain-ilp': HiGHS found no plan on mesh ", mesh_.to_string(), " in ",
                   options_.solve_seconds, " s; give it longer with --plan-seconds");
        SR_REQUIRE(round > 0, invalid_input, "planner '", options_.planner,
                   "' allows no plan on mesh ", mesh_.to_string(),
                   "; take another mesh or planner");
        break;
      }
      if (round == 0 && limit > 0 && peak_bytes(problem, *solution) > limit) {
        room = feasible;
        limited_ = true;
        continue;
      }
      ArenaUse use;
      std::optional<Plan> plan = fitting(space, joint, *solution, use);
      const bool fits = plan.has_value();
      offer(std::move(plan), *solution);
      if (fits && found.solution) break;
      start = solution;
      const bool forbidden =
          may_forbid && !fits && found.solution && forbid_reshardings(space, joint, *solution, use);
      if (round == 0) {
        room = feasible;
        limited_ = true;
      } else if (forbidden) {
        continue;
      } else if (found.solution) {
        feasible = room;
        const std::vector<int64_t> claims = bytes_over_time(problem, *solution);
        const int64_t gaps = use.bytes - *std::max_element(use.alive.begin(), use.alive.end());
        for (size_t t = 0; t < std::min(room.size(), claims.size()); ++t)
          room[t] = std::min(room[t], limit - gaps - (use.alive[t] - claims[t]));
      } else if (round == 1 || ++halvings > kMostHalvings) {
        break;
      } else {
        // What that plan held beside need not be held beside another.
        for (size_t t = 0; t < room.size(); ++t) room[t] = (room[t] + feasible[t]) / 2;
      }
    }
    return best;
  }

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

/// A search's plan, if it found one that fits, and what it knows if not.
struct Found {
  std::optional<Plan> plan;
  int64_t least_bytes = std::numeric_limits<int64_t>::max();  // of plans that were laid out
  int64_t needed_bytes = std::numeric_limits<int64_t>::max();
  bool limited = false;  // by memory
  double unlimited_bound = 0;

  void saw(const Planner& planner) {
    least_bytes = std::min(least_bytes, planner.least_bytes());
    needed_bytes = std::min(needed_bytes, planner.needed_bytes());
  }
};

bool is_free(const PlanOptions& options) {
  return options.planner == "auto" || options.planner == "ilp";
}

/// The planner's own search; where memory leaves much unproven, the baselines as well.
Found search(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
             const PlanOptions& options, RuleCache& rules, PlanReport& filled) {
  Found found;
  Planner planner(graph, mesh, cluster, options, rules);
  std::optional<Plan>& plan = found.plan;
  plan = planner.run(filled);
  found.saw(planner);
  found.limited = planner.limited();
  found.unlimited_bound = planner.unlimited_bound();
  const double gap = plan && filled.cost > 0 ? 1 - filled.lower_bound / filled.cost : 1;
  if (is_free(options) && options.memory_limit > 0 && !graph.updates.empty() && gap > kWideGap) {
    for (const std::string& name : baselines_of(mesh)) {
      PlanOptions other = options;
      other.planner = name;
      PlanReport its;
      try {
        Planner baseline(graph, mesh, cluster, other, rules);
        std::optional<Plan> its_plan = baseline.run(its);
        found.saw(baseline);
        if (its_plan && (!plan || its_plan->seconds < plan->seconds)) {
          plan = std::move(its_plan);
          filled.cost = its.cost;
          filled.solver = its.solver;
          filled.lower_bound = planner.unlimited_bound();
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
    out[v] = max_local_count(value.type.shape, lies->second, plan.mesh) * size_of(value.type.dtype);
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
  Planner unlimited(graph, mesh, cluster, free, rules);
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
    Planner planner(recomputing, mesh, cluster, again, rules);
    its = {};
    std::optional<Plan> plan = planner.run(its);
    add_time(its);
    if (!plan) return planner.least_bytes();
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
    Planner planner(step, mesh, cluster, tight, rules);
    PlanReport its;
    planner.run(its);
    found.saw(planner);
    filled.build_seconds += its.build_seconds;
    filled.solve_seconds += its.solve_seconds;
    const std::optional<Plan>& plan = planner.smallest();
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
  Planner unlimited(graph, mesh, cluster, free, rules);
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
