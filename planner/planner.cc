// Planning: one search, and where memory is scarce searches of baselines, with values computed
// again, and for the least that a rank can hold.
#include "planner/planner.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iomanip>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/process/process_memory.h"
#include "graph/passes/recompute.h"
#include "planner/exposed_lines.h"
#include "planner/hints.h"
#include "planner/limit_settings.h"
#include "planner/meshes/merged_pool.h"
#include "planner/plan_search.h"
#include "planner/recompute.h"

namespace shardrun {
namespace {

class Planning {
 public:
  Planning(const Graph& graph, MeshTables& tables, const PlanOptions& options, RuleCache& rules,
           PlanReport& report)
      : graph_(graph), tables_(tables), options_(options), rules_(rules), report_(report) {}

  Plan run() {
    pool_ = merged_pool(graph_, mesh_, tables_.cluster, options_, rules_,
                        [&](const PlanReport& its) { add_time(its); });
    if (!pool_.empty()) {
      options_.pool = &pool_;
      report_.has_bound = false;
    }
    Version& own = versions_.emplace_back();
    own.options = options_;
    open(own);
    held_bytes_ = own.search->held_bytes();
    note_own(own.report);
    loose_ = own.search->loose();
    take(own, own.report);
    if (plan_) {
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

  bool may_recompute() const { return options_.recompute && !graph_.updates.empty(); }

  /// The step, with some of it computed again or under a known parallelism, and its search.
  struct Version {
    PlanOptions options;
    std::optional<Graph> step;  // where anything is computed again
    std::optional<PlanSearch> search;
    PlanReport report;                            // of what is found if memory is no matter
    Solution loosest;                             // the same
    std::vector<Solution> known;                  // of versions that differ in prices alone
    std::vector<std::vector<Strategy>> proposed;  // PlanSearch::proposed
    double bound = 0;                             // of the cost of all plans
    bool possible = true;                         // no request contradicts it
    int64_t missed = 0;                           // bytes for which nothing was found
    bool least_looked_at = false;                 // for the plan of the fewest bytes
    bool posed = false, solved = false;           // once, by pose() and open()
    int64_t least_claims = 0;                     // PlanSearch::least_claims
    int64_t heap_bytes = 0;                       // of the search, while there is one
    int64_t used = 0;                             // counts uses of all: the last of this one
    std::unique_ptr<Version> hidden;              // as if sums of gradients took no time
  };

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
  void add_time(const PlanReport& its) {
    report_.kernel_runs += its.kernel_runs;
    report_.discovery_seconds += its.discovery_seconds;
    report_.build_seconds += its.build_seconds;
    report_.solve_seconds += its.solve_seconds;
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

  /// Before the arena is allocated its bytes are free. Where searches hold more, those that were
  /// not used for the longest time are closed. What a search finds does not depend on when it was
  /// made.
  void close_unused() {
    std::vector<Version*> open;
    int64_t held = 0;
    for (Version& version : versions_) {
      for (Version* one : {&version, version.hidden.get()}) {
        if (one == nullptr || !one->search) continue;
        open.push_back(one);
        held += one->heap_bytes;
      }
    }
    std::sort(open.begin(), open.end(), [](Version* a, Version* b) { return a->used < b->used; });
    const int64_t most = std::max(options_.memory_limit, kLimit.open_bytes);
    for (size_t i = 0; i + kLimit.stay_open < open.size() && held > most; ++i) {
      held -= open[i]->heap_bytes;
      open[i]->search.reset();
      open[i]->step.reset();
    }
  }

  /// Makes the search, and once more where it was closed. False if it is impossible.
  bool pose(Version& version) {
    version.used = ++uses_;
    if (version.search || !version.possible) return version.possible;
    close_unused();
    const int64_t before = heap_in_use();
    if (!version.options.recomputed.empty())
      version.step = with_recomputed(graph_, version.options.recomputed);
    version.search.emplace(version.step ? *version.step : graph_, tables_, version.options, rules_);
    PlanReport its;
    attempt(version, [&] { version.search->pose(its); });
    add_time(its);
    version.heap_bytes = heap_in_use() - before;
    if (!version.possible || std::exchange(version.posed, true)) return version.possible;
    version.report = std::move(its);
    version.least_claims = version.search->least_claims();
    return true;
  }
  /// The same, solved as if memory were no matter, which takes longer.
  bool open(Version& version) {
    if (!pose(version) || version.search->is_solved()) return version.possible;
    if (version.solved) {
      version.search->reopen(version.loosest, version.report.lower_bound);
      return true;
    }
    PlanReport its = version.report;
    its.solve_seconds = 0;
    // Steps with something computed again are looked at within limits alone; prices between two
    // others' have solutions near theirs.
    const bool polishes = version.options.recomputed.empty() && version.known.size() < 2;
    attempt(version, [&] {
      version.search->open(its, polishes, version.known);
      version.loosest = version.search->loosest();
      version.proposed = version.search->proposed();
    });
    report_.solve_seconds += its.solve_seconds;
    if (!version.possible) return false;
    version.solved = true;
    version.report = std::move(its);
    version.bound = version.report.lower_bound;
    Version& own = versions_.front();
    if (version.options.exposed == options_.exposed) {
      version.bound = own.report.lower_bound;
    } else if (!version.options.recomputed.empty() && open(hidden(own))) {
      version.bound = hidden(own).report.lower_bound;
    }
    return version.possible;
  }
  /// A request may contradict a known parallelism: then that one is impossible.
  template <class Step>
  void attempt(Version& version, const Step& step) {
    try {
      step();
    } catch (const Error& error) {
      const bool known = version.options.planner != options_.planner;
      if (!known || error.kind() != ErrorKind::invalid_input) throw;
      version.possible = false;
    }
  }

  /// May there be a plan of so many bytes?
  bool may_fit(Version& version, int64_t bytes) {
    return (version.posed || pose(version)) && version.possible &&
           static_cast<double>(version.least_claims) < kLimit.claimed * static_cast<double>(bytes);
  }

  std::optional<LaidOut> within(Version& version, int64_t bytes, const Effort& effort,
                                PlanReport& its) {
    its = {};
    if (!open(version)) return std::nullopt;
    std::optional<LaidOut> found = version.search->within(bytes, effort, its);
    add_time(its);
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

  /// Makes the one what the other, which was opened, is, with another fraction of sums exposed.
  static void price_as(Version& one, const Version& other, double exposed) {
    one.options = other.options;
    one.options.exposed = exposed;
    if (!other.proposed.empty()) one.options.proposed = &other.proposed;
  }
  /// The same as if sums of gradients took no time, as where they overlap with kernels.
  Version& hidden(Version& version) {
    if (!version.hidden) {
      version.hidden = std::make_unique<Version>();
      price_as(*version.hidden, version, 0);
      version.hidden->known = {version.loosest};
    }
    return *version.hidden;
  }

  /// The step with more and more computed again, each made when it is asked for.
  struct Series {
    LaidOut base;  // of which it is chosen what to compute again
    PlannerChoice planner;
    double capacity, factor;   // for the bytes alive: the next one's, and what it shrinks by
    ValueBytes bytes;          // of the base
    int64_t least_claims = 0;  // so far
    int looked = 0, idle = 0;  // at capacities; those in a row that claimed no less
    std::vector<Version*> versions{};  // each claims less than all before it
  };

  /// Of what a plan keeps at its fullest moment, capacity for a fraction and its powers, whatever
  /// the limit is.
  Series series_of(const LaidOut& base, const PlannerChoice& planner) {
    return make_series(base, planner, kLimit.capacity * most_alive(base), kLimit.capacity);
  }
  /// The same where nothing can be cut: what fits the limit follows from what is computed again
  /// alone, but for workspaces and gaps.
  Series series_within_limit(const LaidOut& base) {
    const auto over = static_cast<double>(options_.memory_limit - base.plan.bytes);
    return make_series(base, options_.planner, most_alive(base) + over, kLimit.close_capacity);
  }
  double most_alive(const LaidOut& base) const {
    const std::vector<int64_t> alive = bytes_alive(graph_, local_bytes(graph_, base.plan));
    return static_cast<double>(*std::max_element(alive.begin(), alive.end()));
  }
  Series make_series(const LaidOut& base, const PlannerChoice& planner, double capacity,
                     double factor) {
    Series out{base, planner, capacity, factor, local_bytes(graph_, base.plan)};
    Version& whole = computing_again(std::set<std::string>(), planner);
    if (whole.posed || pose(whole)) out.least_claims = whole.least_claims;
    if (!may_recompute()) out.looked = kLimit.capacities;
    return out;
  }
  /// The k-th, null behind the last: there is none behind some that claim no less than those before
  /// them.
  Version* member(Series& series, size_t k) {
    while (series.versions.size() <= k && series.looked < kLimit.capacities &&
           series.idle < kLimit.idle_capacities) {
      ++series.looked;
      Version& version =
          computing_again(choose_recomputed(graph_, series.bytes, series.base.node_seconds,
                                            static_cast<int64_t>(series.capacity)),
                          series.planner);
      series.capacity *= series.factor;
      std::vector<Version*>& versions = series.versions;
      if (version.options.recomputed.empty() ||
          std::find(versions.begin(), versions.end(), &version) != versions.end())
        continue;
      const bool less = (version.posed || pose(version)) && version.possible &&
                        version.least_claims < series.least_claims;
      series.idle = less ? 0 : series.idle + 1;
      if (!less) continue;
      series.least_claims = version.least_claims;
      versions.push_back(&version);
    }
    return k < series.versions.size() ? series.versions[k] : nullptr;
  }
  /// That which claims the least, where nothing is computed again if there is no other.
  Version& least_of(Series& series) {
    (void)member(series, SIZE_MAX);
    return series.versions.empty() ? computing_again(std::set<std::string>(), series.planner)
                                   : *series.versions.back();
  }
  Version& computing_again(std::set<std::string> chosen, const PlannerChoice& planner) {
    for (Version& known : versions_) {
      if (known.options.planner == planner && known.options.recomputed == chosen) return known;
    }
    Version& version = versions_.emplace_back();
    version.options = options_;
    version.options.planner = planner;
    version.options.recomputed = std::move(chosen);
    return version;
  }

  /// Known parallelisms, those that hold the least first.
  const std::vector<Version*>& baselines() {
    if (std::exchange(looked_baselines_, true) || !seeks_all() || options_.pool != nullptr ||
        !options_.tactics.empty() || graph_.updates.empty())
      return baselines_;
    for (PlannerChoice& known : baselines_of(mesh_)) {
      Version& version = versions_.emplace_back();
      version.options = options_;
      version.options.planner = std::move(known);
      if (pose(version)) baselines_.push_back(&version);
    }
    const auto claims = [](const Version* one) { return one->least_claims; };
    std::stable_sort(baselines_.begin(), baselines_.end(),
                     [&](Version* a, Version* b) { return claims(a) < claims(b); });
    return baselines_;
  }

  /// What a version comes to if memory is no matter, with the step of its plan.
  ExposedLine line_of(const Version& version, double step) {
    Version& own = versions_.front();
    pose(own);
    const double shown = own.search->cost(version.loosest);
    pose(hidden(own));
    return {hidden(own).search->cost(version.loosest), shown, step};
  }
  /// The same of one that is not laid out yet. Takes its plan.
  ExposedLine loose_line(Version& version) {
    open(version);
    const double step = version.search->loose().plan.seconds;
    take(version, version.report);
    return line_of(version, step);
  }

  /// Of a plan that fits though memory was no matter.
  void look_at_hidden() {
    Version& own = versions_.front();
    ExposedLines lines;
    std::vector<Version*> searched{&own, &hidden(own)};
    lines.add(line_of(own, loose_->plan.seconds));
    lines.add(loose_line(hidden(own)));
    const bool fits = hidden(own).search->fastest().has_value();
    const PlanReport& least = hidden(own).report;
    const bool slow = least.cost > kExposed.solved * least.lower_bound;
    int most = slow ? kExposed.few_searches : kExposed.searches;
    for (int k = 0; k < most; ++k) {
      // No plan takes less than the search finds where no sum is exposed.
      if (plan_->seconds <= kExposed.worthwhile * least.lower_bound) break;
      const std::optional<ExposedLines::Crossing> next = lines.next();
      if (!next) break;
      Version& between = versions_.emplace_back();
      price_as(between, own, next->exposed);
      between.known = {searched[next->left]->loosest, searched[next->right]->loosest};
      open(between);
      if (between.report.cost >= (1 - kExposed.gained) * next->seconds) continue;
      const double before = lines.least_step();
      lines.add(loose_line(between));
      searched.push_back(&between);
      if (slow && lines.least_step() < before) most = kExposed.few_searches + 1;
    }
    PlanReport its;
    Version& fastest = *searched[lines.fastest()];
    pose(fastest);
    if (fastest.search->shorten(fastest.loosest, plan_->seconds, its)) take(fastest, its);
    if (fastest.search->missed()) return plan_within();
    if (!fits) within(hidden(own), options_.memory_limit, thorough(), its);
  }

  void plan_within() {
    again_ = mesh_.size() > 1 ? series_of(*loose_, options_.planner) : series_within_limit(*loose_);
    const bool looks_below = is_free() && may_recompute() && mesh_.size() > 1;
    if (looks_below) {
      // Where the plan that needs least does not fit, nothing else is tried.
      const bool tight = is_tight();
      if (tight) look_for_least();
      if (tight && !plan_) refuse();
      if (go_down()) return;
      if (!tight) look_for_least();
      if (!plan_) refuse();
    }
    look_at(options_.memory_limit, looks_below ? quick() : thorough());
    if (!plan_ && kind_ != PlannerKind::plain_ilp) look_for_least();
    if (!plan_) refuse();
  }

  /// Is the plan that is found as if sums of gradients took no time faster, if memory is no matter?
  bool hiding_helps() {
    if (hiding_helps_) return *hiding_helps_;
    Version& twin = hidden(versions_.front());
    hiding_helps_ = hides(loose_->plan) && open(twin) &&
                    twin.search->loose().plan.seconds < loose_->plan.seconds;
    return *hiding_helps_;
  }

  /// Is the limit near the least that there can be? Then most looks would be in vain.
  bool is_tight() {
    const auto near = [&](const Version& version) {
      return static_cast<double>(options_.memory_limit) <
             kLimit.tight * static_cast<double>(version.least_claims);
    };
    return near(versions_.front()) && near(least_of(*again_));
  }

  /// Numbers of bytes up to the limit that do not follow from it, from above, as long as the next
  /// has a faster plan. So what is found for a limit is found for a higher one, too. False: nothing
  /// was found.
  bool go_down() {
    const double steps =
        std::floor(std::log2(static_cast<double>(options_.memory_limit)) * kLimit.targets);
    double best = kInfeasible;
    int idle = 0;
    for (int k = 0; idle < kLimit.most_idle; ++k) {
      const double seconds =
          look_at(static_cast<int64_t>(std::exp2((steps - k) / kLimit.targets)), quick());
      if (seconds == kInfeasible || seconds > best * kLimit.slower) break;
      idle = seconds < best * kLimit.gain ? 0 : idle + 1;
      best = std::min(best, seconds);
    }
    return best != kInfeasible;
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
      if (version.missed >= bytes || !may_fit(version, bytes) ||
          (!version.solved && !open(version)) || version.report.lower_bound >= cost * kLimit.slower)
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
    try_version(versions_.front());
    Version* asked = nullptr;
    for (size_t k = 0; faster; ++k) {
      Version* next = member(*again_, k);
      if (next == nullptr || next == asked) break;
      try_version(*next);
      if (misses < kLimit.misses || asked != nullptr) continue;
      asked = &least_of(*again_);
      try_version(*asked);
      if (misses > kLimit.misses) break;
    }
    if (is_free() && (!plan_ || (!may_recompute() && gap > kLimit.wide_gap))) {
      for (Version* known : baselines()) try_version(*known);
    }
    if (fastest != nullptr && hiding_helps() && may_fit(hidden(*fastest), bytes)) {
      PlanReport its;
      const std::optional<LaidOut> found = within(hidden(*fastest), bytes, effort, its);
      if (found) best = std::min(best, found->plan.seconds);
    }
    return best;
  }

  void note(Version& version, const std::optional<LaidOut>& found) {
    if (!found || (smallest_ && found->plan.bytes >= smallest_->plan.bytes)) return;
    smallest_ = found, smallest_of_ = &version;
  }
  void lay_out(Version& version, double bytes, const Effort& effort) {
    PlanReport its;
    within(version, static_cast<int64_t>(bytes), effort, its);
    note(version, version.search->smallest());
  }

  /// The plan that needs least: it is taken if it fits, and its bytes are what a refusal names.
  /// What is found does not depend on the limit that was asked for, so a limit of so many bytes
  /// will do. What tree searches find does, so here all strategies count.
  void look_for_least() {
    note(versions_.front(), loose_);
    const PlannerChoice planner =
        searches_trees() ? PlannerChoice{PlannerKind::ilp} : options_.planner;
    const auto look_at_least = [&](Version& version) {
      if (std::exchange(version.least_looked_at, true) || !may_fit(version, smallest_->plan.bytes))
        return;
      const auto least = static_cast<double>(version.least_claims);
      for (int k = 0; k < kLimit.least_rounds; ++k) {
        lay_out(version, least * (1 + k * kLimit.more_claims), quick(1, kLimit.least_patience));
        if (smallest_of_ != &version) break;
      }
    };
    Version& whole = computing_again(std::set<std::string>(), planner);
    if (&whole == &versions_.front() && mesh_.size() > 1) {
      look_at_least(least_of(*again_));
    } else if (open(whole)) {
      const LaidOut base = &whole == &versions_.front() ? *loose_ : whole.search->loose();
      note(whole, base);
      Series series = series_of(base, planner);
      look_at_least(least_of(series));
    }
    // The first holds the least, and what it computes again is chosen for what it keeps.
    bool first = true;
    for (Version* known : baselines()) {
      if (!(first ? open(*known) : may_fit(*known, smallest_->plan.bytes))) continue;
      lay_out(*known, 1, quick(1, kLimit.least_patience));
      if (!std::exchange(first, false) || !known->search->smallest()) continue;
      const LaidOut base = *known->search->smallest();
      Series series = series_of(base, known->options.planner);
      look_at_least(least_of(series));
    }
    Effort effort = quick(kLimit.squeezed_rounds);
    effort.seconds /= kLimit.squeezed_divisor;
    for (int k = 0; k < kLimit.squeezes && !plan_; ++k) {
      const auto squeezed =
          static_cast<int64_t>(kLimit.squeezed * static_cast<double>(smallest_->plan.bytes));
      if (!may_fit(*smallest_of_, squeezed)) break;
      lay_out(*smallest_of_, static_cast<double>(squeezed), effort);
      if (smallest_->plan.bytes > squeezed) break;
    }
  }

  [[noreturn]] void refuse() const {
    if (smallest_) report_.least_bytes = smallest_->plan.bytes;
    const std::string what = str("model '", graph_.name, "' on mesh ", mesh_.to_string(), ": "),
                      held = str("what persists alone comes to ", held_bytes_,
                                 " at least); allow more memory, ");
    const auto mib = [](int64_t bytes) {
      return str(std::fixed, std::setprecision(2), static_cast<double>(bytes) / (1 << 20));
    };
    SR_REQUIRE(smallest_, out_of_memory, what, "the search ended after ", options_.solve_seconds,
               " s without a plan that fits; the limit is ", options_.memory_limit,
               " bytes a rank (", held, "or a longer search with --plan-seconds");
    fail(ErrorKind::out_of_memory, what, "a plan that is sure to be found needs ",
         smallest_->plan.bytes, " bytes a rank, the limit is ", options_.memory_limit, " (",
         mib(smallest_->plan.bytes), " MiB of ", mib(options_.memory_limit), "; ", held,
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
  std::deque<Version> versions_;  // the first: nothing computed again, no known parallelism
  std::optional<Series> again_;   // of the loose plan
  std::vector<Version*> baselines_;
  bool looked_baselines_ = false;
  std::optional<bool> hiding_helps_;
  std::optional<Plan> plan_;
  std::optional<LaidOut> loose_, smallest_;
  Version* smallest_of_ = nullptr;  // whose that is
  int64_t held_bytes_ = 0, uses_ = 0;
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
