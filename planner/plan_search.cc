// One search: strategies of a folded Graph, the joint Problem, and solutions until an arena fits.
#include "planner/plan_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/process/processors.h"
#include "graph/passes/recompute.h"
#include "planner/game/proposal.h"
#include "planner/reshard/forbidden_reshardings.h"
#include "planner/reshard/sum_price.h"
#include "planner/rules/placing.h"
#include "planner/schedule/roles.h"
#include "planner/space/partial_kinds.h"

namespace shardrun {
namespace {

/// Solutions for one number of bytes: each leaves room for what the last one's arena held besides.
constexpr int kAttempts = 4;
/// What within() may take, in seconds of work: so many times those of the first search, but at
/// least so many, and at most so many seconds or times.
constexpr double kTimesFirst = 16, kLeastSecondsWithin = 0.02;
constexpr double kMostTimesFirst = 2, kMostSecondsWithin = 0.1;
/// Within a limit, relative to the bound. The last of it costs more than it gains: what is hidden
/// beside kernels differs by more between plans that cost the same.
constexpr double kPlanGap = 2e-3;
/// A tree search ends after so many states: a share of the seconds that there are, at so many a
/// second of one core (fewer where arguments are cut, since all is propagated again behind each
/// action). By count, so that a plan does not depend on the machine.
constexpr double kTreeShare = 0.1, kStatesPerSecond = 8000, kArgumentStatesPerSecond = 1000;

double since(double begin) { return thread_seconds() - begin; }

bool any_partial(const std::vector<Placement>& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& p) { return p.kind == Placement::Kind::partial; });
}

/// See PlanOptions::whole_sums. Windows that are added behind a node are sums in parts, too.
void drop_divided_sums(const Node& node, SpmdRule& rule) {
  std::erase_if(rule.options, [&](const SpmdRule::Option& option) {
    return any_partial(option.in) || (any_partial(option.out) && node.op != "gather") ||
           std::any_of(option.out.begin(), option.out.end(),
                       [](const Placement& p) { return p.window.has_value(); });
  });
}

}  // namespace

PlanSearch::PlanSearch(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                       const PlanOptions& options, RuleCache& rules, OnPlan on_plan)
    : graph_(graph),
      mesh_(mesh),
      cluster_(cluster),
      options_(options),
      rules_(rules),
      own_times_(mesh, cluster),
      times_(options.reshard_times != nullptr ? *options.reshard_times : own_times_),
      numbered_(graph, options.contents),
      constraints_(graph, mesh, options.planner, options.tactics, options.requests, options.pinned),
      on_plan_(std::move(on_plan)) {}

PlanSearch::~PlanSearch() = default;

struct PlanSearch::State {
  LimitedSearch search;
  Solution last;  // that fitted
  std::vector<int64_t>
      beside;  // bytes that its arena holds besides claims, by node; empty: unknown
  std::vector<FactoredProblem::Edge> edges;
  bool forbids = false, may_forbid = true;  // do the edges forbid more than at first?
};

/// A joint Problem, and what is known of it.
struct PlanSearch::Posed {
  Posed(const PlanSearch& owner, SearchSpace with)
      : space(std::move(with)),
        joint(build_problem(space, owner.graph_, owner.folding_, owner.mesh_, owner.times_)),
        context{owner.graph_, owner.mesh_, owner.folding_, space, joint, owner.times_},
        edges(joint.problem.edges),
        search(joint.problem, {kPlanGap, owner.method(), owner.options_.seed}) {}

  SearchSpace space;
  JointProblem joint;
  PlanContext context;
  const std::vector<FactoredProblem::Edge> edges;  // before anything is forbidden
  LimitedSearch search;
  Solution first, last;  // without a limit, and the last that fitted
  std::string first_solver;
  std::vector<int64_t> first_beside, beside;  // as State's
  bool forbids = false, may_forbid = true;
};

void PlanSearch::solve(PlanReport& report) {
  SearchSpace all = prepare(report);
  if (searches_trees() && options_.pool == nullptr) keep_proposed(all, report);
  double begin = thread_seconds();
  restrict(all);
  posed_ = std::make_unique<Posed>(*this, std::move(all));
  report.build_seconds += since(begin);
  begin = thread_seconds();
  const double before = work_seconds();
  const LimitedResult found = posed_->search.run({}, nullptr, options_.solve_seconds);
  if (!found.solution) require_a_plan();
  const double work = work_seconds() - before;
  seconds_within_ =
      method() == LimitedOptions::Method::plain
          ? options_.solve_seconds
          : std::min({options_.solve_seconds, std::max(kLeastSecondsWithin, kTimesFirst * work),
                      std::max(kMostSecondsWithin, kMostTimesFirst * work)});
  posed_->first = posed_->last = *found.solution;
  posed_->first_solver = found.solver;
  unlimited_bound_ = found.lower_bound;
  report.solve_seconds += since(begin);
}

std::optional<Plan> PlanSearch::run(PlanReport& report) {
  solve(report);
  ArenaUse unread;
  Plan plan = lay_out(posed_->first, true, true, 0, posed_->first_solver, unread);
  if (options_.memory_limit > 0 && plan.bytes > options_.memory_limit) return std::nullopt;
  return plan;
}

SearchSpace PlanSearch::prepare(PlanReport& report) {
  std::map<std::string, Sharding> apart = constraints_.pinned();
  apart.insert(options_.avoided.begin(), options_.avoided.end());
  folding_ = fold(graph_, apart, constraints_.asked_nodes());
  auto begin = thread_seconds();
  const int runs_before = rules_.kernel_runs();
  find_rules();
  report.discovery_seconds = since(begin);
  report.kernel_runs = rules_.kernel_runs() - runs_before;

  begin = thread_seconds();
  constraints_.split(folding_, class_rules_);
  SearchSpace all = enumerate();
  constraints_.apply(folding_, all);
  report.unresolved.assign(constraints_.unresolved().begin(), constraints_.unresolved().end());
  SR_REQUIRE(!options_.strict || report.unresolved.empty(), invalid_input,
             "--strict: ", to_string(report.unresolved.front(), graph_, mesh_));
  drop_avoided(all);
  report.build_seconds = since(begin);
  return all;
}

RuleOf PlanSearch::rule_of() const {
  return [this](NodeId n) -> const SpmdRule& {
    return class_rules_[static_cast<size_t>(folding_.class_of_node[static_cast<size_t>(n)])];
  };
}

std::unique_ptr<GameTable> PlanSearch::table(const GameOptions& rules) {
  PlanReport unread;
  return table_of(prepare(unread), rules);
}

std::unique_ptr<GameTable> PlanSearch::table_of(SearchSpace space, const GameOptions& rules) {
  restrict(space);
  return std::make_unique<GameTable>(graph_, mesh_, folding_, rule_of(), std::move(space), times_,
                                     rules);
}

/// Leaves the strategies of the states that a tree search likes best.
void PlanSearch::keep_proposed(SearchSpace& space, PlanReport& report) {
  const double begin = thread_seconds();
  GameOptions rules;
  rules.arguments_only = planner_ == PlannerKind::mcts_arguments;
  rules.in_front = !rules.arguments_only;
  rules.memory_limit = options_.memory_limit;
  const std::unique_ptr<GameTable> table = table_of(space, rules);
  report.build_seconds += since(begin);
  const double searching = thread_seconds();
  MctsOptions search;
  search.seed = options_.seed;
  search.threads = usable_cores();
  search.evaluations =
      static_cast<int64_t>(kTreeShare * options_.solve_seconds *
                           (rules.arguments_only ? kArgumentStatesPerSecond : kStatesPerSecond));
  const Proposal found = propose(table->board, rule_of(), options_.tactics, search);
  report.tree_seconds += since(searching) + found.other_seconds;
  report.evaluations += found.evaluations;
  report.found_tactics = found.tactics;
  report.found_seconds = found.price.seconds;
  report.descended_seconds = found.descended.seconds;
  report.has_bound = false;
  for (size_t c = 0; c < space.strategies.size(); ++c) {
    if (folding_.classes[c].nodes.empty()) continue;
    std::vector<Strategy> kept;
    for (int s : found.strategies[c]) kept.push_back(space.strategies[c][static_cast<size_t>(s)]);
    space.strategies[c] = std::move(kept);
  }
}

void PlanSearch::drop_avoided(SearchSpace& space) const {
  for (const auto& [name, sharding] : options_.avoided) {
    const ValueId id = graph_.find(name);
    SR_REQUIRE(id != kNoValue, invalid_input, "avoided value '", name, "' is not in the graph");
    const auto [c, r] = folding_.origin(graph_, id);
    const auto result = static_cast<size_t>(r);
    std::vector<Strategy>& strategies = space.strategies[static_cast<size_t>(c)];
    if (strategies.empty()) continue;  // a held value's come later
    std::erase_if(strategies, [&](const Strategy& s) { return s.out[result] == sharding; });
    SR_REQUIRE(!strategies.empty(), invalid_input, "value '", name,
               "' can lie in no other way than ", to_string(sharding, mesh_));
  }
}

void PlanSearch::find_rules() {
  class_rules_.resize(folding_.classes.size());
  if (mesh_.size() == 1) return;  // nothing can be cut
  for (size_t c = 0; c < folding_.classes.size(); ++c) {
    if (folding_.classes[c].nodes.empty()) continue;
    const Node& node = graph_.node(folding_.classes[c].nodes[0]);
    class_rules_[c] = rules_.rule(node, graph_.types(node.inputs));
    if (options_.whole_sums) drop_divided_sums(node, class_rules_[c]);
  }
  drop_useless_partials(graph_, folding_, constraints_.pinned(), class_rules_);
}

/// A class's rule, with the options in which rows are exchanged if all its nodes know their
/// numbers.
SpmdRule PlanSearch::rule_with_rows(size_t c) {
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

/// Sets the bounds of a plan's rows by what the nodes of a class number. Returns how many nodes
/// share the routing.
int64_t PlanSearch::count_rows(const Folding::Class& members, NodePlan& plan) {
  if (plan.rows.empty()) return 1;
  for (NodeId id : members.nodes) numbered_.count(graph_.node(id), mesh_, plan);
  return numbered_.sharers(graph_.node(members.nodes[0]));
}

/// What the pool has for one of these nodes and this mesh can run, each once, the replicated one
/// first. A node that runs again takes what the first run may.
std::vector<Strategy> PlanSearch::pooled(const Folding::Class& members) {
  const Node& node = graph_.node(members.nodes[0]);
  const std::vector<TensorType> in = graph_.types(node.inputs), out = graph_.types(node.outputs);
  std::vector<Strategy> strategies;
  std::set<std::pair<std::vector<Sharding>, std::vector<Sharding>>> known;
  const auto add = [&](NodePlan plan) {
    if (!can_run(node, in, out, plan, mesh_, constraints_.leaves_empty()) ||
        !known.emplace(plan.in, plan.out).second)
      return;
    for (Rows& rows : plan.rows) rows.most_named = rows.most_owned = 0;  // the joined mesh's
    const int64_t sharers = count_rows(members, plan);
    strategies.push_back(priced(node, in, out, std::move(plan), sharers, mesh_, cluster_));
  };
  add(replicated_node(in, out));
  for (NodeId id : members.nodes) {
    std::string_view name = graph_.node(id).name;
    if (name.starts_with(kAgain)) name.remove_prefix(kAgain.size());
    const auto it = options_.pool->find(std::string(name));
    if (it == options_.pool->end()) continue;
    for (const NodePlan& plan : it->second) add(plan);
  }
  return strategies;
}

SearchSpace PlanSearch::enumerate() {
  SearchSpace space;
  space.sum_prices = sum_prices(graph_, cluster_, options_.exposed);
  space.reshards_updates = constraints_.reshards_updates();
  space.strategies.resize(folding_.classes.size());
  for (size_t c = 0; c < folding_.classes.size(); ++c) {
    if (folding_.classes[c].nodes.empty()) continue;
    const Node& node = graph_.node(folding_.classes[c].nodes[0]);
    const bool requested = constraints_.asks(node, folding_.classes[c].nodes[0]);
    if (options_.pool != nullptr && !requested) {
      space.strategies[c] = pooled(folding_.classes[c]);
      continue;
    }
    const SpmdRule rule = rule_with_rows(c);
    const auto count = [&](NodePlan& plan) { return count_rows(folding_.classes[c], plan); };
    space.strategies[c] =
        constraints_.strategies(c, folding_, [&](const Constraints::MayTake& may_take) {
          return enumerate_strategies(node, graph_.types(node.inputs), graph_.types(node.outputs),
                                      rule, mesh_, cluster_, constraints_.leaves_empty(), count,
                                      may_take);
        });
  }
  return space;
}

LimitedOptions::Method PlanSearch::method() const {
  using Method = LimitedOptions::Method;
  return planner_ == PlannerKind::beam        ? Method::beam
         : planner_ == PlannerKind::plain_ilp ? Method::plain
                                              : Method::narrowing;
}

/// The plan of a solution, and its arena's bytes. `share`: as in extract_plan. It is timed if it
/// has at most `target` bytes (0: any).
Plan PlanSearch::lay_out(const Solution& solution, bool share, bool timed, int64_t target,
                         const std::string& solver, ArenaUse& use) {
  const FactoredProblem& claims = posed_->joint.problem;
  LaidOut out;
  out.node_seconds = node_seconds(posed_->context, solution);
  out.cost = raw_cost(claims, solution);
  out.bound = unlimited_bound_;
  out.nodes = static_cast<int>(graph_.nodes().size());
  out.folded_nodes =
      static_cast<int>(std::count_if(folding_.classes.begin(), folding_.classes.end(),
                                     [](const Folding::Class& c) { return !c.nodes.empty(); }));
  out.solver = solver;
  out.plan = extract_plan(posed_->context, solution, share);
  Plan& plan = out.plan;
  plan.planner = planner_ == PlannerKind::automatic ? "ilp" : options_.planner;
  plan.recompute = options_.recomputed;
  use = options_.arena_use
            ? options_.arena_use(plan)
            : ArenaUse{peak_bytes(claims, solution), bytes_over_time(claims, solution)};
  plan.bytes = use.bytes;
  out.timed = timed && (target == 0 || plan.bytes <= target);
  if (options_.retime && out.timed) options_.retime(plan);
  if (on_plan_) on_plan_(out);
  return std::move(out.plan);
}

/// Where readers that share the copies that they want take less time, lays that out as well.
void PlanSearch::note_sharing(const Solution& solution, const std::string& solver) {
  if (extract_plan(posed_->context, solution, true).seconds >=
      extract_plan(posed_->context, solution, false).seconds)
    return;
  ArenaUse unread;
  (void)lay_out(solution, true, true, 0, solver, unread);
}

/// Bytes in a solution's arena that are not in its claims, node by node: gaps, workspaces, what is
/// made for one reader; less what is written over operands.
std::vector<int64_t> PlanSearch::beside_claims(const Solution& solution,
                                               const ArenaUse& use) const {
  const std::vector<int64_t> claims = bytes_over_time(posed_->joint.problem, solution);
  const int64_t gaps = use.bytes - *std::max_element(use.alive.begin(), use.alive.end());
  std::vector<int64_t> out(graph_.nodes().size(), gaps);
  for (size_t t = 0; t < std::min(out.size(), use.alive.size()); ++t)
    out[t] += use.alive[t] - (t < claims.size() ? claims[t] : 0);
  return out;
}

int64_t PlanSearch::least_held(const SearchSpace& space) const {
  int64_t bytes = 0;
  for (size_t c = 0; c < folding_.classes.size(); ++c) {
    const std::vector<ValueId>& values = folding_.classes[c].values;
    if (values.empty() || !is_persistent(graph_.value(values[0]).role)) continue;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const Strategy& s : space.strategies[c])
      least = std::min(least, max_local_bytes(graph_.type(values[0]), s.out[0], mesh_));
    bytes += least * static_cast<int64_t>(values.size());
  }
  return bytes;
}

/// What values may be, and held ones too.
void PlanSearch::restrict(SearchSpace& space) {
  if (constraints_.regathers_weights()) space.regathered = made_of_weights(graph_);
  space.may_redistribute = [&](ValueId id, const Sharding& to) {
    return constraints_.may_redistribute(id, to);
  };
  add_value_strategies(space, graph_, folding_, constraints_.pinned());
  constraints_.restrict_held(space, folding_);
  drop_avoided(space);
  held_bytes_ = least_held(space);
}

/// Throws where nothing was found, though memory was no matter.
void PlanSearch::require_a_plan() const {
  SR_REQUIRE(planner_ != PlannerKind::plain_ilp, invalid_input, "planner '", options_.planner,
             "': HiGHS found no plan on mesh ", mesh_.to_string(), " in ", options_.solve_seconds,
             " s; give it longer with --plan-seconds");
  fail(ErrorKind::invalid_input, "planner '", options_.planner, "' allows no plan on mesh ",
       mesh_.to_string(), "; take another mesh or planner");
}

std::shared_ptr<const PlanSearch::State> PlanSearch::state() const {
  const Posed& at = *posed_;
  return std::make_shared<const State>(
      State{at.search, at.last, at.beside, at.joint.problem.edges, at.forbids, at.may_forbid});
}

void PlanSearch::go_back(const State& state) {
  Posed& at = *posed_;
  at.search.take_times(state.search);
  at.last = state.last;
  at.beside = state.beside;
  at.joint.problem.edges = state.edges;
  at.forbids = state.forbids;
  at.may_forbid = state.may_forbid;
}

void PlanSearch::restart() {
  const Posed& at = *posed_;
  const LimitedSearch anew(at.joint.problem, {kPlanGap, method(), options_.seed});
  go_back({anew, at.first, at.first_beside, at.edges, false, true});
}

double PlanSearch::bound_within(int64_t bytes) {
  restart();
  const std::vector<int64_t> room(graph_.nodes().size(), bytes);
  return posed_->search.run(room, nullptr, seconds_within_).lower_bound;
}

/// The additive memory of the problem leaves out workspaces and what is made for one reader, and
/// cannot know how buffers share an arena. So a solution's arena is looked at, and the next one has
/// so many bytes less, or more, node by node. Where it does not fit for something large that is
/// made for one reader, that is forbidden; else the next solution must leave as much room beside
/// its claims as this one took.
bool PlanSearch::within(int64_t target, PlanReport& report, bool timed) {
  const double begin = thread_seconds();
  Posed& at = *posed_;
  ArenaUse use;
  if (at.first_beside.empty()) {
    (void)lay_out(at.first, false, timed, target, at.first_solver, use);
    at.beside = at.first_beside = beside_claims(at.first, use);
  }
  std::vector<int64_t> beside = at.beside;
  bool fits = false;
  for (int attempt = 0; attempt < kAttempts && !fits; ++attempt) {
    std::vector<int64_t> room;
    for (int64_t bytes : beside) room.push_back(target - bytes);
    const LimitedResult found = at.search.run(room, &at.last, seconds_within_);
    if (!found.solution && at.forbids) {  // too much was
      at.forbids = at.may_forbid = false;
      at.joint.problem.edges = at.edges;
      continue;
    }
    if (!found.solution && attempt == 0 && at.may_forbid) {
      // It may be what was brought into another Sharding that took the room, as is seen below.
      std::fill(beside.begin(), beside.end(), 0);
      continue;
    }
    if (!found.solution) break;
    const Solution& solution = *found.solution;
    fits = lay_out(solution, false, timed, target, found.solver, use).bytes <= target;
    if (fits) {
      at.last = solution;
      at.beside = beside_claims(solution, use);
      if (timed) note_sharing(solution, found.solver);
    } else if (at.may_forbid && forbid_reshardings(at.context, solution, use, target)) {
      at.forbids = true;
    } else {
      const std::vector<int64_t> its = beside_claims(solution, use);
      for (size_t t = 0; t < beside.size(); ++t) beside[t] = std::max(beside[t], its[t]);
    }
  }
  report.solve_seconds += since(begin);
  return fits;
}

}  // namespace shardrun
