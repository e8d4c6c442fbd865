// Planning: one search, and where memory is scarce searches of baselines, with values computed
// again, and for the least that a rank can hold.
#include "planner/planner.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "planner/exposed_lines.h"
#include "planner/hints.h"
#include "planner/limit_settings.h"
#include "planner/meshes/merged_pool.h"
#include "planner/recompute.h"
#include "planner/versions.h"

namespace shardrun {
namespace {

class Planning {
 public:
  Planning(const Graph& graph, MeshTables& tables, const PlanOptions& options, RuleCache& rules,
           PlanReport& report)
      : graph_(graph), tables_(tables), options_(options), rules_(rules), report_(report) {}

  Plan run() {
    pool_ = merged_pool(graph_, mesh_, tables_.cluster, options_, rules_,
                        [&](const PlanReport& its) { versions_.add_time(its); });
    if (!pool_.empty()) {
      options_.pool = &pool_;
      report_.has_bound = false;
    }
    Version& own = versions_.own();
    versions_.open(own);
    held_bytes_ = own.search->held_bytes();
    note_own(own.report);
    loose_ = own.search->loose();
    take(own, own.report);
    if (options_.least && kind_ != PlannerKind::plain_ilp) {
      take_least();
    } else if (plan_) {
      if (hides(*plan_)) look_at_hidden();
    } else {
      plan_within();
    }
    report_.distinct_rules = rules_.distinct_rules();
    report_.kept_rules = rules_.kept_rules();
    return *plan_;
  }

 private:
  bool is_free() const { return kind_ == PlannerKind::automatic || kind_ == PlannerKind::ilp; }
  bool searches_trees() const {
    return kind_ == PlannerKind::mcts || kind_ == PlannerKind::mcts_arguments;
  }
  /// May any plan come out?
  bool seeks_all() const { return is_free() || kind_ == PlannerKind::beam || searches_trees(); }
  Effort thorough() const { return {options_.solve_seconds}; }
  Effort quick(int rounds = kLimit.target_rounds, int patience = 0) const {
    return {options_.solve_seconds / kLimit.seconds_divisor,
            kLimit.target_gap,
            rounds,
            kLimit.shared_from,
            true,
            patience};
  }

  Effort least_effort() const {
    Effort out = quick(1, kLimit.least_patience);
    out.seconds /= kLimit.least_divisor;
    return out;
  }

  bool may_recompute() const { return options_.recompute && !graph_.updates.empty(); }

  /// What a search laid out last, if that fits and is the fastest so far. `its`: what it says.
  void take(const Version& version, const PlanReport& its) {
    const std::optional<LaidOut>& found = version.search->fastest();
    if (!found || (plan_ && plan_->seconds * kLimit.kept_gain <= found->plan.seconds)) return;
    Plan plan = found->plan;
    if (options_.retime_kept) options_.retime_kept(plan);
    if (plan_ && plan_->seconds <= plan.seconds) return;
    plan_ = std::move(plan);
    report_.nodes = version.report.nodes;
    report_.folded_nodes = version.report.folded_nodes;
    report_.solver = its.solver;
    report_.cost = its.cost;
    report_.lower_bound = std::min(version.bound, its.cost);
  }
  /// What is said of the planner's own search.
  void note_own(const PlanReport& its) {
    report_.unresolved = its.unresolved;
    report_.has_bound = report_.has_bound && its.has_bound;
    report_.found_tactics = its.found_tactics;
    report_.found_seconds = its.found_seconds;
    report_.descended_seconds = its.descended_seconds;
    report_.tree_seconds = its.tree_seconds;
    report_.evaluations = its.evaluations;
  }

  std::optional<LaidOut> within(Version& version, int64_t bytes, const Effort& effort,
                                PlanReport& its) {
    its = {};
    if (!versions_.open(version)) return std::nullopt;
    std::optional<LaidOut> found = version.search->within(bytes, effort, its);
    versions_.add_time(its);
    // Holds for all plans that fit, where those that compute something again are none.
    if (bytes == options_.memory_limit && !may_recompute() &&
        version.options.planner == options_.planner)
      version.bound = std::max(version.bound, its.lower_bound);
    take(version, its);
    if (!found) version.missed = std::max(version.missed, bytes);
    return found;
  }

  bool hides(const Plan& plan) const {
    return plan.hidden_seconds > 0 && !graph_.updates.empty() &&
           (is_free() || kind_ == PlannerKind::mcts);
  }

  /// What a version comes to if memory is no matter, with the step of its plan.
  ExposedLine line_of(const Version& version, double step) {
    Version& own = versions_.own();
    versions_.pose(own);
    const double shown = own.search->cost(version.loosest);
    Version& hidden = versions_.hidden(own);
    versions_.pose(hidden);
    return {hidden.search->cost(version.loosest), shown, step};
  }
  /// The same of one that is not laid out yet. Takes its plan.
  ExposedLine loose_line(Version& version) {
    versions_.open(version);
    const double step = version.search->loose().plan.seconds;
    take(version, version.report);
    return line_of(version, step);
  }

  /// Of a plan that fits though memory was no matter.
  void look_at_hidden() {
    Version& own = versions_.own();
    Version& hidden = versions_.hidden(own);
    ExposedLines lines;
    std::vector<Version*> searched{&own, &hidden};
    lines.add(line_of(own, loose_->plan.seconds));
    lines.add(loose_line(hidden));
    const bool fits = hidden.search->fastest().has_value();
    const PlanReport& least = hidden.report;
    const bool slow = least.cost > kExposed.solved * least.lower_bound;
    int most = slow ? kExposed.few_searches : kExposed.searches;
    for (int k = 0; k < most; ++k) {
      // No plan takes less than the search finds where no sum is exposed.
      if (plan_->seconds <= kExposed.worthwhile * least.lower_bound) break;
      const std::optional<ExposedLines::Crossing> next = lines.next();
      if (!next) break;
      Version& between =
          versions_.between(next->exposed, *searched[next->left], *searched[next->right]);
      versions_.open(between);
      if (between.report.cost >= (1 - kExposed.gained) * next->seconds) continue;
      const double before = lines.least_step();
      lines.add(loose_line(between));
      searched.push_back(&between);
      if (slow && lines.least_step() < before) most = kExposed.few_searches + 1;
    }
    PlanReport its;
    Version& fastest = *searched[lines.fastest()];
    versions_.pose(fastest);
    if (fastest.search->shorten(fastest.loosest, plan_->seconds, its)) take(fastest, its);
    if (fastest.search->missed()) return plan_within();
    if (!fits) within(hidden, options_.memory_limit, thorough(), its);
  }

  /// Versions with more and more computed again. `base`: a plan under that planner; capacities are
  /// for a fraction, and its powers, of what it keeps at its fullest moment, whatever the limit is.
  Series series_of(const LaidOut& base, const PlannerChoice& planner) {
    return {versions_, graph_, base, planner, kLimit.capacity * most_alive(base), kLimit.capacity};
  }
  /// The same where nothing can be cut: what fits the limit follows from what is computed again
  /// alone, but for workspaces and gaps.
  Series series_within_limit(const LaidOut& base) {
    const auto over = static_cast<double>(options_.memory_limit - base.plan.bytes);
    return {
        versions_, graph_, base, options_.planner, most_alive(base) + over, kLimit.close_capacity};
  }
  double most_alive(const LaidOut& base) const {
    const std::vector<int64_t> alive = bytes_alive(graph_, local_bytes(graph_, base.plan));
    return static_cast<double>(*std::max_element(alive.begin(), alive.end()));
  }

  void compute_more_again() {
    again_.emplace(mesh_.size() > 1 ? series_of(*loose_, options_.planner)
                                    : series_within_limit(*loose_));
  }

  void take_least() {
    compute_more_again();
    look_for_least();
    if (smallest_->plan.bytes > options_.memory_limit) refuse();
    plan_ = smallest_->plan;
    report_.has_bound = false;
  }

  void plan_within() {
    compute_more_again();
    const bool looks_below = is_free() && !graph_.updates.empty() && mesh_.size() > 1;
    if (looks_below) {
      // The plan that needs least does not depend on the limit. Where that is near it, nothing else
      // is tried if it does not fit. Where a look is short it is looked for in any case, so that a
      // higher limit has it, too.
      const bool tight = is_tight(), at_once = tight || looks_are_short();
      if (at_once) look_for_least();
      if (tight && !plan_) refuse();
      if (go_down()) return;
      if (!at_once) look_for_least();
      if (!plan_) refuse();
    }
    look_at(options_.memory_limit, looks_below ? quick() : thorough());
    if (!plan_ && kind_ != PlannerKind::plain_ilp) look_for_least();
    if (!plan_) refuse();
  }

  /// Is the plan that is found as if sums of gradients took no time faster, if memory is no matter?
  bool hiding_helps() {
    if (hiding_helps_) return *hiding_helps_;
    Version& hidden = versions_.hidden(versions_.own());
    hiding_helps_ = hides(loose_->plan) && versions_.open(hidden) &&
                    hidden.search->loose().plan.seconds < loose_->plan.seconds;
    return *hiding_helps_;
  }

  /// Is the limit near the least that there can be? Then most looks would be in vain.
  bool is_tight() {
    const auto near = [&](const Version& version) {
      return static_cast<double>(options_.memory_limit) <
             kLimit.tight * static_cast<double>(version.least_claims);
    };
    return near(versions_.own()) && near(again_->least());
  }

  /// Numbers of bytes in a row without a gain that end looks. Where the step is small a look is
  /// short, and more of them are made.
  int idle_looks() const {
    return std::max(kLimit.most_idle,
                    kLimit.looked_nodes / static_cast<int>(graph_.nodes().size()));
  }

  bool looks_are_short() const { return idle_looks() > kLimit.most_idle; }

  /// Numbers of bytes up to the limit that do not follow from it, from above, as long as the next
  /// has a faster plan. So what is found for a limit is found for a higher one, too. False: nothing
  /// was found.
  bool go_down() {
    const double steps =
        std::floor(std::log2(static_cast<double>(options_.memory_limit)) * kLimit.targets);
    const bool are_short = looks_are_short();
    double best = kInfeasible;
    int idle = 0;
    for (int k = 0; idle < idle_looks(); ++k) {
      const double seconds = look_at(static_cast<int64_t>(std::exp2((steps - k) / kLimit.targets)),
                                     are_short ? quick(kLimit.short_rounds) : quick());
      if (!are_short && (seconds == kInfeasible || seconds > best * kLimit.slower)) break;
      idle = seconds < best * kLimit.gain ? 0 : idle + 1;
      best = std::min(best, seconds);
    }
    return best != kInfeasible;
  }

  /// Known parallelisms that may fit, where any plan may come out.
  std::vector<Version*> baselines(int64_t bytes) {
    const bool counts = seeks_all() && options_.pool == nullptr && options_.tactics.empty() &&
                        !graph_.updates.empty();
    return counts ? versions_.baselines(bytes) : std::vector<Version*>();
  }

  /// The fastest step of so many bytes that is found, in seconds: with more and more computed
  /// again, until that takes longer; that one as if sums of gradients took no time; and known
  /// parallelisms.
  double look_at(int64_t bytes, const Effort& effort) {
    double best = kInfeasible, cost = kInfeasible, gap = 1;
    Version* fastest = nullptr;
    bool faster = true;
    int misses = 0;  // in a row
    const auto try_version = [&](Version& version) {
      if (version.missed >= bytes || !versions_.may_fit(version, bytes) ||
          (!version.solved && !versions_.open(version)) ||
          version.report.lower_bound >= cost * kLimit.slower)
        return;
      PlanReport its;
      const std::optional<LaidOut> found = within(version, bytes, effort, its);
      misses = found ? 0 : misses + 1;
      if (!found) return;
      faster = found->plan.seconds < best;
      if (!faster) return;
      best = found->plan.seconds, cost = its.cost;
      gap = 1 - its.lower_bound / its.cost;
      fastest = &version;
    };
    try_version(versions_.own());
    Version* asked = nullptr;
    for (size_t k = 0; faster; ++k) {
      Version* next = again_->member(k);
      if (next == nullptr || next == asked) break;
      try_version(*next);
      if (misses < kLimit.misses || asked != nullptr) continue;
      asked = &again_->least();
      try_version(*asked);
      if (misses > kLimit.misses) break;
    }
    const bool none = fastest == nullptr && (!plan_ || looks_are_short());
    if (is_free() && (none || (!may_recompute() && gap > kLimit.wide_gap))) {
      for (Version* known : baselines(bytes)) try_version(*known);
    }
    if (fastest != nullptr && hiding_helps() &&
        versions_.may_fit(versions_.hidden(*fastest), bytes)) {
      PlanReport its;
      const std::optional<LaidOut> found = within(versions_.hidden(*fastest), bytes, effort, its);
      if (found) best = std::min(best, found->plan.seconds);
    }
    return best;
  }

  void note(Version& version, const std::optional<LaidOut>& found) {
    if (!found || (smallest_ && found->plan.bytes >= smallest_->plan.bytes)) return;
    smallest_ = found, smallest_of_ = &version;
  }
  /// What neither fits nor is smaller than what is known is not looked at on all ranks.
  void lay_out(Version& version, double bytes, Effort effort) {
    if (smallest_) {
      const int64_t least = smallest_->plan.bytes;
      effort.enough = options_.least ? least : std::max(least, options_.memory_limit);
    }
    PlanReport its;
    within(version, static_cast<int64_t>(bytes), effort, its);
    note(version, version.search->smallest());
  }

  /// The plan that needs least: it is taken if it fits, and its bytes are what a refusal names.
  /// What is found does not depend on the limit that was asked for, so a limit of so many bytes
  /// will do. What tree searches find does, so here all strategies count.
  void look_for_least() {
    note(versions_.own(), loose_);
    const PlannerChoice planner =
        searches_trees() ? PlannerChoice{PlannerKind::ilp} : options_.planner;
    const auto look_at_least = [&](Version& version) {
      if (std::exchange(version.least_looked_at, true) ||
          !versions_.may_fit(version, smallest_->plan.bytes))
        return;
      const auto least = static_cast<double>(version.least_claims);
      for (int k = 0; k < kLimit.least_rounds; ++k) {
        lay_out(version, least * (1 + k * kLimit.more_claims), least_effort());
        if (smallest_of_ != &version) break;
      }
    };
    Version& whole = versions_.computing_again({}, planner);
    if (&whole == &versions_.own() && mesh_.size() > 1) {
      look_at_least(again_->least());
    } else if (versions_.open(whole)) {
      const LaidOut base = &whole == &versions_.own() ? *loose_ : whole.search->loose();
      note(whole, base);
      Series series = series_of(base, planner);
      look_at_least(series.least());
    }
    // The first holds the least, and what it computes again is chosen for what it keeps.
    bool first = true;
    for (Version* known : baselines(smallest_->plan.bytes)) {
      if (!(first ? versions_.open(*known) : versions_.may_fit(*known, smallest_->plan.bytes)))
        continue;
      lay_out(*known, 1, least_effort());
      if (!std::exchange(first, false) || !known->search->smallest()) continue;
      const LaidOut base = *known->search->smallest();
      Series series = series_of(base, known->options.planner);
      look_at_least(series.least());
    }
    Effort effort = quick(kLimit.squeezed_rounds);
    effort.seconds /= kLimit.squeezed_divisor;
    for (int k = 0; k < kLimit.squeezes && (!plan_ || options_.least); ++k) {
      const auto squeezed =
          static_cast<int64_t>(kLimit.squeezed * static_cast<double>(smallest_->plan.bytes));
      if (!versions_.may_fit(*smallest_of_, squeezed)) break;
      lay_out(*smallest_of_, static_cast<double>(squeezed), effort);
      if (smallest_->plan.bytes > squeezed) break;
    }
  }

  [[noreturn]] void refuse() const {
    const int64_t limit = options_.asked_limit > 0 ? options_.asked_limit : options_.memory_limit;
    if (smallest_) report_.least = smallest_->plan;
    const std::string what = str("model '", graph_.name, "' on mesh ", mesh_.to_string(), ": "),
                      held = str("what persists alone comes to ", held_bytes_,
                                 " at least); allow more memory, ");
    const auto mib = [](int64_t bytes) {
      return str(std::fixed, std::setprecision(2), static_cast<double>(bytes) / (1 << 20));
    };
    SR_REQUIRE(smallest_, out_of_memory, what, "the search ended after ", options_.solve_seconds,
               " s without a plan that fits; the limit is ", limit, " bytes a rank (", held,
               "or a longer search with --plan-seconds");
    fail(ErrorKind::out_of_memory, what, "a plan that is sure to be found needs ",
         smallest_->plan.bytes, " bytes a rank, the limit is ", limit, " (",
         mib(smallest_->plan.bytes), " MiB of ", mib(limit), "; ", held,
         "use more ranks or a smaller batch");
  }

  const Graph& graph_;
  MeshTables& tables_;
  const Mesh& mesh_ = tables_.mesh;
  PlanOptions options_;
  StrategyPool pool_;
  const PlannerKind kind_ = options_.planner.kind;
  RuleCache& rules_;
  PlanReport& report_;
  Versions versions_{graph_, tables_, options_, rules_, report_};
  std::optional<Series> again_;  // of the loose plan
  std::optional<bool> hiding_helps_;
  std::optional<Plan> plan_;
  std::optional<LaidOut> loose_, smallest_;
  Version* smallest_of_ = nullptr;  // whose that is
  int64_t held_bytes_ = 0;
};

}  // namespace

Plan plan_shardings(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                    const PlanOptions& options, RuleCache& rules, PlanReport* report) {
  PlanReport unread;
  std::optional<MeshTables> own;
  MeshTables& tables = options.tables != nullptr ? *options.tables : own.emplace(mesh, cluster);
  const PlanUnder plan_under = [&](const PlanOptions& under, PlanReport& its) {
    return Planning(graph, tables, under, rules, its).run();
  };
  return plan_with_hints(graph, mesh, options, plan_under, report != nullptr ? *report : unread);
}

}  // namespace shardrun
