// Levels of memory, and the searches that look at each.
#include "planner/memory_levels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/at.h"
#include "graph/passes/recompute.h"
#include "planner/recompute.h"

namespace shardrun {
namespace {

/// The first levels below what is needed without a limit are close to it; then each is this
/// fraction of the one above.
constexpr double kFirstLevels[] = {0.98, 0.93};
constexpr double kLevel = 0.85;
/// Between two levels the best search of the upper one looks at these fractions of it.
constexpr double kBetween[] = {0.96, 0.92, 0.88};
/// So many searches go on to the next level, the fastest, if they take at most so many times the
/// best's time.
constexpr size_t kGoOn = 2;
constexpr double kBehind = 1.08;
/// So many levels in a row whose plans take so many times the best within the limit are the last,
/// and so many that have none.
constexpr int kWorseLevels = 2, kEmptyLevels = 2;
constexpr double kWorse = 1.02;
/// Below this fraction of what is needed without a limit it is first found out what the least is.
constexpr double kScarce = 0.6;
/// The least is looked for by such steps, until it is so close to what nothing was found for.
constexpr double kLess = 0.8, kClose = 1.03;
/// So many times is more computed again, each time as much as would leave so little.
constexpr int kLeastChoices = 3;
constexpr double kMuchLess = 0.4;

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

}  // namespace

MemoryLevels::MemoryLevels(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                           const PlanOptions& options, RuleCache& rules, PlanReport& report)
    : graph_(graph),
      mesh_(mesh),
      cluster_(cluster),
      options_(options),
      rules_(rules),
      report_(report) {}

void MemoryLevels::note(Search& of, const LaidOut& plan) {
  const auto keep_smaller = [&](std::optional<LaidOut>& known) {
    if (!known || plan.plan.bytes < known->plan.bytes) known = plan;
  };
  const auto keep_faster = [&](std::optional<LaidOut>& known, int64_t limit) {
    if (limit > 0 && plan.plan.bytes > limit) return;
    if (!known || plan.plan.seconds < known->plan.seconds) known = plan;
  };
  keep_smaller(of.smallest);
  keep_smaller(smallest_);
  if (!plan.timed) return;
  keep_faster(fastest_, options_.memory_limit);
  if (level_ == 0 || plan.plan.bytes > level_) return;
  keep_faster(level_best_, level_);
  of.seconds = std::min(of.seconds, plan.plan.seconds);
}

/// A search of the step with what is computed again.
MemoryLevels::Search& MemoryLevels::add(std::set<std::string> recomputed, double exposed) {
  Search& out = searches_.emplace_back();
  out.recomputed = std::move(recomputed);
  out.options = options_;
  out.options.recomputed.insert(out.recomputed.begin(), out.recomputed.end());
  out.options.exposed = exposed;
  if (!out.recomputed.empty())
    out.step = std::make_unique<const Graph>(with_recomputed(graph_, out.recomputed));
  out.search =
      std::make_unique<PlanSearch>(out.step ? *out.step : graph_, mesh_, cluster_, out.options,
                                   rules_, [this, &out](const LaidOut& plan) { note(out, plan); });
  return out;
}

/// As if memory were no matter.
void MemoryLevels::solve(Search& search, bool lays_out) {
  PlanReport its;
  if (lays_out) {
    (void)search.search->run(its);
  } else {
    search.search->solve(its);
  }
  report_.kernel_runs += its.kernel_runs;
  report_.discovery_seconds += its.discovery_seconds;
  report_.build_seconds += its.build_seconds;
  report_.solve_seconds += its.solve_seconds;
  if (&search != &searches_.front()) return;
  report_.unresolved = std::move(its.unresolved);
  report_.found_tactics = std::move(its.found_tactics);
  report_.found_seconds = its.found_seconds;
  report_.tree_seconds += its.tree_seconds;
  report_.evaluations += its.evaluations;
  report_.has_bound = report_.has_bound && its.has_bound;
}

bool MemoryLevels::known(const std::set<std::string>& recomputed) const {
  return std::any_of(searches_.begin(), searches_.end(),
                     [&](const Search& s) { return s.recomputed == recomputed; });
}

bool MemoryLevels::start(bool hide_sums) {
  Search& keeping = add({}, options_.exposed);
  solve(keeping, true);
  first_ = keeping.smallest;
  exposed_ = options_.exposed;
  double least = first_->plan.seconds;
  if (hide_sums && first_->plan.hidden_seconds > 0) {
    Search& hiding = add({}, 0);
    solve(hiding, true);
    if (hiding.smallest->plan.seconds < least) {
      least = hiding.smallest->plan.seconds;
      exposed_ = 0;
    }
  }
  return fastest_ && fastest_->plan.seconds <= least;
}

void MemoryLevels::look_at_limit() {
  PlanSearch& search = *searches_.front().search;
  (void)search.within(options_.memory_limit, report_);
  search.restart();
}

double MemoryLevels::bound() {
  return searches_.front().search->bound_within(options_.memory_limit);
}

/// What a base would have to compute again to need so many bytes.
std::set<std::string> MemoryLevels::chosen_for(const LaidOut& base, int64_t target) const {
  const std::set<std::string>& again = base.plan.recompute;
  const std::optional<Graph> step =
      again.empty() ? std::nullopt : std::optional<Graph>(with_recomputed(graph_, again));
  const Graph& its = step ? *step : graph_;
  const std::vector<int64_t> alive = bytes_alive(its, local_bytes(its, base.plan));
  // Workspaces, and the gaps between buffers.
  const int64_t beside = base.plan.bytes - *std::max_element(alive.begin(), alive.end());
  std::vector<double> seconds;  // of the graph's own nodes
  for (size_t n = 0; n < its.nodes().size(); ++n) {
    if (!its.nodes()[n].name.starts_with(kAgain)) seconds.push_back(base.node_seconds[n]);
  }
  return choose_recomputed(graph_, local_bytes(graph_, base.plan), seconds, target - beside);
}

/// Searches that compute again what this level asks for: of the plan without a limit, and of the
/// fastest one level above.
void MemoryLevels::add_recomputing(int64_t target) {
  const auto add_for = [&](const LaidOut& base, double exposed) {
    std::set<std::string> chosen = chosen_for(base, target);
    if (!chosen.empty() && !known(chosen)) solve(add(std::move(chosen), exposed), false);
  };
  add_for(*first_, exposed_);
  if (level_best_) add_for(*level_best_, options_.exposed);
}

void MemoryLevels::look_at(int64_t target) {
  if (may_recompute()) add_recomputing(target);
  level_ = target;
  level_best_.reset();
  std::vector<double> seconds;
  for (Search& search : searches_) {
    search.seconds = std::numeric_limits<double>::infinity();
    if (search.dropped) continue;
    search.dropped = !search.search->within(target, report_);
    seconds.push_back(search.seconds);
  }
  level_ = 0;
  std::sort(seconds.begin(), seconds.end());
  for (Search& search : searches_)
    search.dropped = search.dropped || search.seconds > kBehind * seconds[0] ||
                     (seconds.size() > kGoOn && search.seconds > seconds[kGoOn - 1]);
}

/// What is between this level and the next, by the best search. The next level finds all as if this
/// had not been looked at.
void MemoryLevels::look_between(int64_t target) {
  Search& best =
      *std::min_element(searches_.begin(), searches_.end(),
                        [](const Search& a, const Search& b) { return a.seconds < b.seconds; });
  const std::shared_ptr<const PlanSearch::State> before = best.search->state();
  for (double fraction : kBetween) {
    if (!best.search->within(static_cast<int64_t>(fraction * static_cast<double>(target)), report_))
      break;
  }
  best.search->go_back(*before);
}

/// Less and less memory for one search, until nothing is found; or `closely`, until what it found
/// is close to what it did not find.
void MemoryLevels::squeeze(Search& search, bool closely) {
  while (search.missed == 0 || closely) {
    const auto least =
        static_cast<double>(search.smallest ? search.smallest->plan.bytes : smallest_->plan.bytes);
    if (search.missed * kClose >= least) return;
    const double target = search.missed > 0 ? std::sqrt(search.missed * least) : kLess * least;
    if (!search.search->within(static_cast<int64_t>(target), report_, false))
      search.missed = target;
  }
}

/// Nothing but start() has happened, as far as later searches can tell.
void MemoryLevels::start_again() {
  searches_.remove_if([](const Search& search) { return !search.recomputed.empty(); });
  for (Search& search : searches_) {
    search.search->restart();
    search.missed = 0;
    search.dropped = false;
  }
  searches_.front().smallest = smallest_ = first_;
  level_best_.reset();
}

/// The plan of the fewest bytes: of what keeps all first, then with what that computes again. It
/// does not depend on the limit.
void MemoryLevels::find_smallest() {
  start_again();
  Search* last = &searches_.front();
  squeeze(*last, false);
  for (int round = 0; round < kLeastChoices && may_recompute(); ++round) {
    const double much_less = kMuchLess * static_cast<double>(smallest_->plan.bytes);
    std::set<std::string> chosen = chosen_for(*smallest_, static_cast<int64_t>(much_less));
    if (chosen.empty() || known(chosen)) break;
    last = &add(std::move(chosen), exposed_);
    solve(*last, false);
    squeeze(*last, false);
  }
  squeeze(*last, true);
  LaidOut timed = *smallest_;
  if (options_.retime && !timed.timed) options_.retime(timed.plan);
  timed.timed = true;
  note(*last, timed);
}

void MemoryLevels::descend() {
  const auto all = static_cast<double>(first_->plan.bytes);
  const auto limit = static_cast<double>(options_.memory_limit);
  if (limit < kScarce * all) {
    find_smallest();
    if (!fastest_) return;
    start_again();
  }
  int worse = 0, empty = 0;
  double level = all, next = kFirstLevels[0] * all;
  for (size_t round = 1; worse < kWorseLevels; ++round) {
    level = std::exchange(
        next, round < std::size(kFirstLevels) ? kFirstLevels[round] * all : kLevel * next);
    look_at(static_cast<int64_t>(level));
    if (!level_best_) {
      if (++empty == kEmptyLevels) break;
      continue;
    }
    empty = 0;
    if (next > limit) continue;
    look_between(static_cast<int64_t>(level));
    if (level > limit) continue;
    worse = level_best_->plan.seconds > kWorse * fastest_->plan.seconds ? worse + 1 : 0;
  }
  if (!fastest_) find_smallest();
}

}  // namespace shardrun
