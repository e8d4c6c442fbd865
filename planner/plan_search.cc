// One search: strategies of a folded Graph, the joint Problem, and solutions until an arena fits.
#include "planner/plan_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/process/processors.h"
#include "graph/passes/recompute.h"
#include "planner/game/proposal.h"
#include "planner/limit_settings.h"
#include "planner/near_solutions.h"
#include "planner/reshard/forbidden_reshardings.h"
#include "planner/reshard/sum_price.h"
#include "planner/rules/placing.h"
#include "planner/schedule/roles.h"
#include "planner/solver/deadline.h"
#include "planner/space/partial_kinds.h"
#include "planner/starts.h"
#include "planner/step_descent.h"
#include "program/keep_casts.h"

namespace shardrun {
namespace {

/// How far a plan is fitted to a limit of memory, and how long trees are searched.
struct FittingSettings {
  int most_halvings = 2;  // between bytes that no solution meets and the last that one met
  // A plan of fewer bytes than `full` of the limit leaves bytes for claims that may be used, where
  // it costs more than `free` times what it would if memory were no matter.
  double full = 0.98, free = 1.001;
  double least_claims = 1.01;  // times the least that claims can come to: no fewer are given, since
                               // the arena may be smaller, where results are written over operands
  double ample = 0.75;         // of the limit: claims that come to less fit, with all of an arena
  // Nodes that a descent times, of all its steps: some hundredths of a second.
  int64_t timed_nodes = 200'000;
  double lost = 0.15;  // relative: where the gap is wider, a search begins again with nothing cut
  // Solutions near the cheapest are laid out if they may be faster, by times that are not exact: of
  // so many times its step at most. So many of them, and nodes of them all.
  double likely = 1.01;
  int64_t most_likely = 3, laid_out_nodes = 16000;
  // A tree search ends after so many states, by count, so that a plan does not depend on the
  // machine.
  double tree_share = 0.1;                   // of the seconds that there are
  double states_per_second = 8000;           // of one core
  double argument_states_per_second = 1000;  // the same where arguments are cut: each action
                                             // propagates all again
};
constexpr FittingSettings kFitting;

double since(double begin) { return thread_seconds() - begin; }

bool any_partial(const std::vector<Placement>& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& p) { return p.kind == Placement::Kind::partial; });
}

/// See PlanOptions::whole_sums. Windows that are added behind a node are sums in parts, too.
void drop_divided_sums(const Node& node, SpmdRule& rule) {
  const Elements elements = op_def(node.op).elements;
  const bool divides = elements != Elements::all && elements != Elements::some;
  std::erase_if(rule.options, [&](const SpmdRule::Option& option) {
    return any_partial(option.in) || (any_partial(option.out) && divides) ||
           std::any_of(option.out.begin(), option.out.end(),
                       [](const Placement& p) { return p.window.has_value(); });
  });
}

}  // namespace

PlanSearch::PlanSearch(const Graph& graph, MeshTables& tables, const PlanOptions& options,
                       RuleCache& rules)
    : graph_(graph),
      tables_(tables),
      options_(options),
      rules_(rules),
      numbered_(graph, options.contents),
      constraints_(graph, mesh_, options.planner, options.tactics, options.requests,
                   options.pinned) {}

void PlanSearch::pose(PlanReport& report) {
  if (posed_) return;
  SearchSpace all = prepare(report);
  if (searches_trees() && options_.pool == nullptr) {
    if (options_.proposed == nullptr) {
      keep_proposed(all, report);
    } else {
      all.strategies = *options_.proposed;
      report.has_bound = false;
    }
  }
  const double begin = thread_seconds();
  space_ = std::move(all);
  restrict(*space_);
  joint_ = build_problem(*space_, graph_, folding_, mesh_, tables_.reshard_times);
  posed_.emplace(PlanContext{graph_, mesh_, folding_, *space_, *joint_, tables_.reshard_times});
  least_claims_ = least_peak_bytes(joint_->problem);
  report.build_seconds += since(begin);
  starts_ = proposed_starts();
}

void PlanSearch::open(PlanReport& report, bool polishes, const std::vector<Solution>& known) {
  pose(report);
  std::vector<Solution> starts = starts_;
  starts.insert(starts.end(), known.begin(), known.end());
  Effort effort{options_.solve_seconds};
  effort.polishes = polishes;
  LimitedSearch search = solver(effort);
  LimitedResult found = solve_round(search, {}, starts, effort.seconds, report);
  // Some plan is always looked for, however short the search is to be.
  if (!found.solution && method() != LimitedOptions::Method::plain)
    found = solve_round(search, {}, starts, std::max(effort.seconds, Effort().seconds), report);
  require_a_plan(found);
  if (found.cost > (1 + kFitting.lost) * found.lower_bound &&
      method() == LimitedOptions::Method::narrowing) {
    starts.push_back(*found.solution);
    if (std::optional<Solution> start = least_cut(joint_->problem, *space_)) {
      starts.push_back(std::move(*start));
      found = solve_round(search, {}, starts, effort.seconds, report);
    }
  }
  unlimited_bound_ = report.lower_bound;
  report.cost = raw_cost(joint_->problem, *found.solution);
  loosest_ = std::move(found.solution);
}

void PlanSearch::reopen(const Solution& loosest, double lower_bound) {
  loosest_ = loosest;
  unlimited_bound_ = lower_bound;
}

LaidOut PlanSearch::loose() {
  smallest_.reset();
  fastest_.reset();
  ArenaUse use;
  const int64_t limit = options_.memory_limit;
  const bool may_fit = limit <= 0 || static_cast<double>(peak_bytes(joint_->problem, *loosest_)) <
                                         kLimit.claimed * static_cast<double>(limit);
  const std::optional<LaidOut> fits =
      may_fit ? fitting(*loosest_, limit, 1, kAnyArena, use) : std::nullopt;
  if (fits) return *fits;
  LaidOut out = lay_out(*loosest_, true, kAnyArena, use);
  if (options_.retime) options_.retime(out.plan);
  return out;
}

/// Near a solution those that may have shorter steps, the likeliest first; what takes the same time
/// counts as one. None where laying them out takes too long.
std::vector<Solution> PlanSearch::likely_near(const Solution& solution, StepTimes& times) const {
  const int64_t most = std::min(
      kFitting.most_likely, kFitting.laid_out_nodes / static_cast<int64_t>(graph_.nodes().size()));
  const double cost = raw_cost(joint_->problem, solution);
  if (most == 0 || cost > (1 + NearOptions().most_gap) * unlimited_bound_) return {};
  std::vector<Solution> all = near_solutions(joint_->problem, solution);
  std::map<double, Solution*> by_time;
  for (Solution& one : all) by_time.try_emplace(times.seconds(one), &one);
  const double slowest = kFitting.likely * times.seconds(solution);
  std::vector<Solution> out;
  for (auto& [seconds, one] : by_time) {
    if (seconds <= slowest && std::ssize(out) < most) out.push_back(std::move(*one));
  }
  return out;
}

bool PlanSearch::shorten(const Solution& solution, double seconds, PlanReport& report) {
  smallest_.reset();
  fastest_.reset();
  const FactoredProblem& problem = joint_->problem;
  std::optional<LaidOut> shortest;
  missed_ = false;
  const auto is_shorter = [&](const Solution& one) {
    ArenaUse use;
    std::optional<LaidOut> fits = fitting(one, options_.memory_limit, 1, kAnyArena, use);
    missed_ = missed_ || !fits;
    if (fits && options_.retime_kept) options_.retime_kept(fits->plan);
    if (!fits || fits->plan.seconds >= seconds) return false;
    seconds = fits->plan.seconds;
    report.cost = raw_cost(problem, one);
    shortest = std::move(fits);
    return true;
  };
  StepTimes times(*posed_);
  Solution start = solution;
  for (Solution& near : likely_near(solution, times)) {
    if (!is_shorter(near)) continue;
    start = std::move(near);
    break;
  }
  const StepModel step{[&](const Solution& s) { return times.seconds(s); },
                       [&](const Solution& s) { return times.chain(s); }};
  const Solution found = step_descent(
      problem, step, start, kFitting.timed_nodes / static_cast<int64_t>(graph_.nodes().size()));
  if (found != start) (void)is_shorter(found);
  report.solver = "descent";
  fastest_ = std::move(shortest);
  return fastest_.has_value();
}

SearchSpace PlanSearch::prepare(PlanReport& report) {
  std::map<std::string, Sharding> apart = constraints_.pinned();
  apart.insert(options_.avoided.begin(), options_.avoided.end());
  folding_ = fold(graph_, apart, constraints_.marked_nodes());
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
  constraints_.split(folding_, class_rules_);
  SearchSpace all = enumerate();
  constraints_.apply(folding_, all);
  report.unresolved.assign(constraints_.unresolved().begin(), constraints_.unresolved().end());
  SR_REQUIRE(
      !options_.strict || constraints_.propagates(), invalid_input,
      "--strict: no tactic and no request is propagated here, so nothing could stop; say how "
      "to cut with --tactic or --shard, or leave it out");
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
  return std::make_unique<GameTable>(graph_, mesh_, folding_, rule_of(), std::move(space),
                                     tables_.reshard_times, rules);
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
  search.evaluations = static_cast<int64_t>(
      kFitting.tree_share * options_.solve_seconds *
      (rules.arguments_only ? kFitting.argument_states_per_second : kFitting.states_per_second));
  const Proposal found = propose(table->board, rule_of(), options_.tactics, search);
  report.tree_seconds += since(searching) + found.other_seconds;
  report.evaluations += found.evaluations;
  report.found_tactics = found.tactics;
  report.found_seconds = found.price.seconds;
  report.descended_seconds = found.descended.seconds;
  report.has_bound = false;
  cheapest_.assign(space.strategies.size(), -1);
  for (size_t c = 0; c < space.strategies.size(); ++c) {
    if (folding_.classes[c].nodes.empty()) continue;
    std::vector<Strategy> kept;
    for (int s : found.strategies[c]) {
      if (s == found.cheapest[c]) cheapest_[c] = static_cast<int>(kept.size());
      kept.push_back(space.strategies[c][static_cast<size_t>(s)]);
    }
    space.strategies[c] = std::move(kept);
  }
  proposed_ = space.strategies;
}

/// What a tree search and its descents found cheapest: nodes take it, and held values and hubs what
/// is best with it. None where there was none.
std::vector<Solution> PlanSearch::proposed_starts() const {
  if (cheapest_.empty()) return {};
  Kept kept = all_kept(joint_->problem);
  for (size_t c = 0; c < cheapest_.size(); ++c) {
    if (cheapest_[c] >= 0) kept[c] = {cheapest_[c]};
  }
  std::optional<Solution> found = cheapest_of(joint_->problem, kept);
  if (!found) return {};
  return {std::move(*found)};
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

/// Of what its kernel takes, the fraction that a node takes in a step. A weight's bf16 copy is kept
/// from step to step where memory allows it (runtime/program/keep_casts.h): then the update writes
/// it, two bytes of the six that a cast moves; without an update nothing does.
double PlanSearch::fraction_run(const Node& node) const {
  constexpr double kWritten = 1.0 / 3;
  return !casts_weight(graph_, node) ? 1 : graph_.updates.empty() ? 0 : kWritten;
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
      if (constraints_.are_met(c, space.strategies[c])) continue;
    }
    const SpmdRule rule = rule_with_rows(c);
    const bool exchanges_rows = rule.options.size() > class_rules_[c].options.size();
    const auto count = [&](NodePlan& plan) { return count_rows(folding_.classes[c], plan); };
    space.strategies[c] =
        constraints_.strategies(c, folding_, [&](const Constraints::MayTake& may_take) {
          const std::vector<TensorType> in = graph_.types(node.inputs),
                                        out = graph_.types(node.outputs);
          const bool leave_empty = constraints_.leaves_empty();
          if (!may_take && !exchanges_rows)
            return tables_.strategies.of(node, in, out, rule, leave_empty);
          return enumerate_strategies(node, in, out, rule, mesh_, cluster_, leave_empty, count,
                                      may_take);
        });
  }
  for (size_t c = 0; c < folding_.classes.size(); ++c) {
    if (folding_.classes[c].nodes.empty()) continue;
    const double fraction = fraction_run(graph_.node(folding_.classes[c].nodes[0]));
    for (Strategy& strategy : space.strategies[c])
      strategy.seconds =
          fraction * (strategy.seconds - strategy.exchange_seconds) + strategy.exchange_seconds;
  }
  return space;
}

LimitedOptions::Method PlanSearch::method() const {
  using Method = LimitedOptions::Method;
  return planner_ == PlannerKind::beam        ? Method::beam
         : planner_ == PlannerKind::plain_ilp ? Method::plain
                                              : Method::narrowing;
}

/// The plan of a solution, and its arena's bytes. `share`: as in extract_plan.
LaidOut PlanSearch::lay_out(const Solution& solution, bool share, int64_t enough, ArenaUse& use) {
  LaidOut out{extract_plan(*posed_, solution, share), node_seconds(*posed_, solution)};
  Plan& plan = out.plan;
  plan.planner = to_string(planner_ == PlannerKind::automatic ? PlannerChoice{PlannerKind::ilp}
                                                              : options_.planner);
  plan.recompute = options_.recomputed;
  const FactoredProblem& claims = joint_->problem;
  plan.bytes = peak_bytes(claims, solution);
  use = options_.arena_use ? options_.arena_use(plan, enough)
                           : ArenaUse{plan.bytes, bytes_over_time(claims, solution)};
  plan.bytes = use.bytes;
  const int64_t limit = options_.memory_limit;
  const bool fits = limit <= 0 || plan.bytes <= limit;
  if (options_.retime && fits) options_.retime(plan);  // what does not fit is not taken
  if (!smallest_ || plan.bytes < smallest_->plan.bytes) smallest_ = out;
  if (fits && (!fastest_ || plan.seconds < fastest_->plan.seconds)) fastest_ = out;
  return out;
}

/// The plan of a solution, if it fits. Readers share the copies that they want if memory allows
/// that, else each gets its own from the hub's. `shares`, `enough`: Effort's. `use`: of the latter.
std::optional<LaidOut> PlanSearch::fitting(const Solution& solution, int64_t limit, double shares,
                                           int64_t enough, ArenaUse& use) {
  // Laying out takes longer than all else, so what is likely comes first.
  const bool ample = static_cast<double>(peak_bytes(joint_->problem, solution)) <
                     kFitting.ample * static_cast<double>(limit);
  if (limit <= 0 || ample) {
    LaidOut sharing = lay_out(solution, true, enough, use);
    if (limit <= 0 || sharing.plan.bytes <= limit) return sharing;
  }
  LaidOut own = lay_out(solution, false, enough, use);
  if (own.plan.bytes > limit) return std::nullopt;
  if (!ample && static_cast<double>(own.plan.bytes) <= shares * static_cast<double>(limit)) {
    ArenaUse its;
    LaidOut sharing = lay_out(solution, true, enough, its);
    if (sharing.plan.bytes <= limit && sharing.plan.seconds < own.plan.seconds) return sharing;
  }
  return own;
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
  constraints_.say_copies(space);
  space.may_redistribute = [&](ValueId id, const Sharding& to) {
    return constraints_.may_redistribute(id, to);
  };
  add_value_strategies(space, graph_, folding_, constraints_.pinned());
  constraints_.restrict_held(space, folding_);
  drop_avoided(space);
  held_bytes_ = least_held(space);
}

/// Throws where nothing was found, though memory is no matter.
void PlanSearch::require_a_plan(const LimitedResult& found) const {
  if (found.solution) return;
  SR_REQUIRE(planner_ != PlannerKind::plain_ilp, invalid_input, "planner '",
             to_string(options_.planner), "': HiGHS found no plan on mesh ", mesh_.to_string(),
             " in ", options_.solve_seconds, " s; give it longer with --plan-seconds");
  fail(ErrorKind::invalid_input, "planner '", to_string(options_.planner),
       "' allows no plan on mesh ", mesh_.to_string(), "; take another mesh or planner");
}

/// Leaves at most as many bytes for claims, node by node, as this solution's arena does.
static void tighten(std::vector<int64_t>& capacity, int64_t limit, const ArenaUse& use,
                    const std::vector<int64_t>& claims) {
  const int64_t gaps = use.bytes - *std::max_element(use.alive.begin(), use.alive.end());
  for (size_t t = 0; t < std::min(capacity.size(), claims.size()); ++t)
    capacity[t] = std::min(capacity[t], limit - gaps - (use.alive[t] - claims[t]));
}

LimitedSearch PlanSearch::solver(const Effort& effort) const {
  return {joint_->problem, {effort.gap, method(), options_.seed, effort.polishes, effort.patience}};
}

LimitedResult PlanSearch::solve_round(LimitedSearch& search, const std::vector<int64_t>& capacity,
                                      const std::vector<Solution>& starts, double seconds,
                                      PlanReport& report) const {
  const double begin = thread_seconds();
  LimitedResult found = search.run(capacity, starts, seconds);
  report.solver = found.solver;
  report.lower_bound = found.lower_bound;
  report.solve_seconds += since(begin);
  return found;
}

/// The additive memory of the problem leaves out workspaces and what is made for one reader, and
/// cannot know how buffers share an arena. So a solution's arena is looked at. Where that does
/// not fit for something large that is made for one reader, that is forbidden; else the next
/// solution must leave as many bytes besides its claims, node by node, as this one took. Where it
/// leaves bytes, claims may take them, too, once.
std::optional<LaidOut> PlanSearch::within(int64_t limit, const Effort& effort, PlanReport& report) {
  smallest_.reset();
  fastest_.reset();
  FactoredProblem& problem = joint_->problem;
  const std::vector<FactoredProblem::Edge> allowed = problem.edges;
  const Deadline end(effort.seconds, method() == LimitedOptions::Method::plain
                                         ? Deadline::Clock::wall
                                         : Deadline::Clock::work);
  LimitedSearch search = solver(effort);
  // First as if an arena held claims alone.
  const double free = kFitting.free * raw_cost(problem, *loosest_),
               full = kFitting.full * static_cast<double>(limit),
               least = kFitting.least_claims * static_cast<double>(least_claims_);
  std::vector<int64_t> capacity(graph_.nodes().size(),
                                std::max(limit, static_cast<int64_t>(least)));
  search.add_rows(capacity, *loosest_);
  std::vector<int64_t> feasible = capacity;
  std::vector<Solution> starts = starts_;
  std::optional<LaidOut> best;
  const auto offer = [&](const std::optional<LaidOut>& plan, const Solution& solution) {
    if (!plan || (best && best->plan.seconds <= plan->plan.seconds)) return;
    best = plan;
    report.cost = raw_cost(problem, solution);
  };
  double bound = unlimited_bound_;
  int halvings = 0;
  bool forbidden = false, may_forbid = true, loosened = false;
  for (int round = 0; round < effort.rounds && (round == 0 || !end.passed()); ++round) {
    const LimitedResult found = solve_round(search, capacity, starts, end.left(), report);
    // What the first round knows holds for all plans.
    if (round == 0 && capacity[0] == limit) bound = std::max(bound, found.lower_bound);
    if (!found.solution && forbidden) {  // too much was
      may_forbid = forbidden = false;
      problem.edges = allowed;
      continue;
    }
    const std::optional<Solution>& solution = found.solution ? found.solution : found.tightest;
    if (!solution) break;
    const bool may_loosen = !loosened && found.solution && raw_cost(problem, *solution) > free;
    ArenaUse use;
    std::optional<LaidOut> fits =
        fitting(*solution, limit, may_loosen ? 0 : effort.shares, effort.enough, use);
    offer(fits, *solution);
    if (fits && may_loosen && static_cast<double>(fits->plan.bytes) < full) {
      loosened = true;
      for (int64_t& bytes : capacity) bytes += limit - fits->plan.bytes;
      continue;
    }
    if (loosened || (fits && found.solution) || round + 1 == effort.rounds) break;
    starts = {*solution};
    if (may_forbid && !fits && found.solution &&
        forbid_reshardings(*posed_, *solution, use, limit)) {
      forbidden = true;
    } else if (found.solution) {
      feasible = capacity;
      tighten(capacity, limit, use, bytes_over_time(problem, *solution));
    } else if (round == 0 || ++halvings > kFitting.most_halvings) {
      break;
    } else {
      // What that plan held besides its claims need not be held under another.
      for (size_t t = 0; t < capacity.size(); ++t) capacity[t] = (capacity[t] + feasible[t]) / 2;
    }
  }
  problem.edges = allowed;
  report.lower_bound = bound;
  return best;
}

}  // namespace shardrun
