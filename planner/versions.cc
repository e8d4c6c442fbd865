// Making, closing and solving again the searches of versions.
#include "planner/versions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/process/process_memory.h"
#include "graph/passes/recompute.h"
#include "planner/schedule/schedule.h"

namespace shardrun {

Versions::Versions(const Graph& graph, MeshTables& tables, const PlanOptions& options,
                   RuleCache& rules, PlanReport& report)
    : graph_(graph), tables_(tables), options_(options), rules_(rules), report_(report) {}

Version& Versions::own() { return computing_again({}, options_.planner); }

Version& Versions::computing_again(std::set<std::string> chosen, const PlannerChoice& planner) {
  for (Version& known : all_) {
    if (known.options.planner == planner && known.options.recomputed == chosen) return known;
  }
  Version& version = all_.emplace_back();
  version.options = options_;
  version.options.planner = planner;
  version.options.recomputed = std::move(chosen);
  return version;
}

/// Makes the one what the other, which was opened, is, with another fraction of sums exposed.
static void price_as(Version& one, const Version& other, double exposed) {
  one.options = other.options;
  one.options.exposed = exposed;
  if (!other.proposed.empty()) one.options.proposed = &other.proposed;
}

Version& Versions::hidden(Version& version) {
  if (!version.hidden) {
    version.hidden = std::make_unique<Version>();
    price_as(*version.hidden, version, 0);
    version.hidden->known = {version.loosest};
  }
  return *version.hidden;
}

Version& Versions::between(double exposed, const Version& left, const Version& right) {
  Version& version = all_.emplace_back();
  price_as(version, own(), exposed);
  version.known = {left.loosest, right.loosest};
  return version;
}

int64_t least_held(const Graph& graph, const PlannerChoice& baseline, const Mesh& mesh) {
  int64_t weights = 1, state = 1;  // parts that each may be cut into
  const std::vector<AxisCuts> cuts = cuts_by_axis(*baseline_schedule(baseline, mesh), mesh);
  for (size_t axis = 0; axis < cuts.size(); ++axis) {
    const int64_t size = mesh.axes()[axis].size;
    const bool by_model = cuts[axis].inner || cuts[axis].free || cuts[axis].dims;
    if (by_model || cuts[axis].weights) weights *= size;
    if (by_model || cuts[axis].state) state *= size;
  }
  int64_t bytes = 0;
  for (const Value& value : graph.values()) {
    if (value.role == Role::parameter) bytes += byte_size(value.type) / weights;
    if (value.role == Role::state) bytes += byte_size(value.type) / state;
  }
  return bytes;
}

std::vector<Version*> Versions::baselines(int64_t bytes) {
  std::vector<Version*> out;
  for (PlannerChoice& known : baselines_of(tables_.mesh)) {
    if (least_held(graph_, known, tables_.mesh) > bytes) continue;
    Version*& version = baselines_[to_string(known)];
    if (version == nullptr) {
      version = &all_.emplace_back();
      version->options = options_;
      version->options.planner = std::move(known);
    }
    if (version->posed || pose(*version)) out.push_back(version);
  }
  std::stable_sort(out.begin(), out.end(), [](const Version* a, const Version* b) {
    return a->least_claims < b->least_claims;
  });
  return out;
}

bool Versions::pose(Version& version) {
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

bool Versions::open(Version& version) {
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
  if (version.options.exposed == options_.exposed) {
    version.bound = own().report.lower_bound;
  } else if (!version.options.recomputed.empty() && open(hidden(own()))) {
    version.bound = hidden(own()).report.lower_bound;
  }
  return version.possible;
}

bool Versions::may_fit(Version& version, int64_t bytes) {
  return (version.posed || pose(version)) && version.possible &&
         static_cast<double>(version.least_claims) < kLimit.claimed * static_cast<double>(bytes);
}

void Versions::add_time(const PlanReport& its) {
  report_.kernel_runs += its.kernel_runs;
  report_.discovery_seconds += its.discovery_seconds;
  report_.build_seconds += its.build_seconds;
  report_.solve_seconds += its.solve_seconds;
}

/// Before the arena is allocated its bytes are free. Where searches hold more, those that were
/// not used for the longest time are closed. What a search finds does not depend on when it was
/// made.
void Versions::close_unused() {
  std::vector<Version*> open;
  int64_t held = 0;
  for (Version& version : all_) {
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

/// A request may contradict a known parallelism: then that one is impossible.
template <class Step>
void Versions::attempt(Version& version, const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    const bool known = version.options.planner != options_.planner;
    if (!known || error.kind() != ErrorKind::invalid_input) throw;
    version.possible = false;
  }
}

Series::Series(Versions& versions, const Graph& graph, const LaidOut& base,
               const PlannerChoice& planner, double capacity, double factor)
    : versions_(versions),
      graph_(graph),
      planner_(planner),
      node_seconds_(base.node_seconds),
      bytes_(local_bytes(graph, base.plan)),
      capacity_(capacity),
      factor_(factor) {
  Version& whole = versions.computing_again({}, planner);
  if (whole.posed || versions.pose(whole)) whole_claims_ = least_claims_ = whole.least_claims;
  if (!whole.options.recompute || graph.updates.empty()) capacities_ = 0;
}

const Recomputed& Series::chosen(int k) {
  const auto [at, fresh] = chosen_.try_emplace(k);
  if (fresh) {
    const auto capacity = static_cast<int64_t>(capacity_ * std::pow(factor_, k));
    at->second = choose_recomputed(graph_, bytes_, node_seconds_, capacity);
  }
  return at->second;
}

Version& Series::at_capacity(int k) { return versions_.computing_again(chosen(k).nodes, planner_); }

/// Is something computed again there, so that every plan claims less?
static bool claims_less(Versions& versions, Version& version, int64_t claims) {
  return !version.options.recomputed.empty() && (version.posed || versions.pose(version)) &&
         version.possible && version.least_claims < claims;
}

Version* Series::member(size_t k) {
  while (made_.size() <= k && looked_ < capacities_ && idle_ < kLimit.idle_capacities) {
    Version& version = at_capacity(looked_++);
    if (version.options.recomputed.empty() ||
        std::find(made_.begin(), made_.end(), &version) != made_.end())
      continue;
    const bool less = claims_less(versions_, version, least_claims_);
    idle_ = less ? 0 : idle_ + 1;
    if (!less) continue;
    least_claims_ = version.least_claims;
    made_.push_back(&version);
  }
  return k < made_.size() ? made_[k] : nullptr;
}

/// As long as a capacity is met claims fall with it. So the last that is met is looked for, and
/// what comes behind it is made.
Version& Series::least() {
  int met = -1, missed = capacities_;
  while (met + 1 < missed) {
    const int middle = (met + missed) / 2;
    (chosen(middle).fits ? met : missed) = middle;
  }
  Version* out = &versions_.computing_again({}, planner_);
  int64_t claims = whole_claims_;
  for (int k = std::max(0, met), idle = 0; k < capacities_ && idle < kLimit.idle_capacities; ++k) {
    Version& version = at_capacity(k);
    if (&version == out) continue;
    const bool less = claims_less(versions_, version, claims);
    idle = less ? 0 : idle + 1;
    if (less) out = &version, claims = version.least_claims;
  }
  return *out;
}

}  // namespace shardrun
