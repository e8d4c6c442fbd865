// Neighbourhoods of what the prices and the best solutions say.
#include "planner/contest/core_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/at.h"
#include "base/share.h"
#include "planner/solver/presolve/reductions.h"

namespace shardrun {
namespace {

/// How CoreSearch spends its work. Work is RegionMove::work, about one entry of a table each.
struct CoreSearchSettings {
  // Prices of memory.
  int sweeps = 600;                // of the core's search for prices, at most
  int neighbourhood_sweeps = 300;  // of a neighbourhood's, which is smaller and starts anew
  double sweep_work = 0.1;         // of an entry of a cost matrix in a sweep
  // First solutions. `emphasis`: of all prices, in turn, while what they decode cannot be made to
  // fit.
  std::array<double, 4> emphasis{1.0, 1.5, 3.0, 10.0};
  int64_t repair_work = 20000000;    // of one repair
  double repair_fraction = 0.25;     // of the time left, for one repair: several are tried
  int64_t first_patience = 1000000;  // work without a gain that ends the first improvement
  // Rounds.
  int64_t round_work = 4000000;             // of a thread between two meetings
  int64_t neighbourhood_patience = 500000;  // work without a gain that ends one neighbourhood
  double large_core = 5000;    // strategies: so many or more get all of these amounts of work
  double least_effort = 0.01;  // a tiny core gets this fraction of them
  double gain = 1e-5;          // relative to the cost: a round with less is stale
  int stale_rounds = 3;        // then neighbourhoods get wider and leave good solutions out
  // Neighbourhoods.
  size_t elites = 4;            // best solutions that are kept, to be recombined
  double elite_fraction = 0.5;  // of them in a neighbourhood while rounds are stale
  double least_kept = 0.1;      // fraction of the strategies, by slack, that one keeps
  double most_kept = 0.5;       // 1 while rounds are stale
  double spread = 1;            // of a node's slack around that, as a logarithm, each way
  // The time that preparing a neighbourhood takes.
  double setup_past = 0.7;  // of the longest, from one to the next
  double setups_left = 2;   // so many have to fit into the time left
  // Random numbers: a seed for each attempt, round and thread.
  uint64_t attempt_seed = 7919, round_seed = 1000003, most_threads = 64;
};
constexpr CoreSearchSettings kCoreSearch;

/// Keeps the list sorted, without doubles and short.
void keep_best(std::vector<CoreSearch::Found>& elites, CoreSearch::Found found) {
  if (found.choice.empty() || found.cost == kInfeasible) return;
  for (const CoreSearch::Found& other : elites) {
    if (other.choice == found.choice) return;
  }
  const auto place = std::upper_bound(
      elites.begin(), elites.end(), found.cost,
      [](double cost, const CoreSearch::Found& other) { return cost < other.cost; });
  elites.insert(place, std::move(found));
  if (elites.size() > kCoreSearch.elites) elites.resize(kCoreSearch.elites);
}

}  // namespace

CoreSearch::CoreSearch(Problem core, const SolveOptions& options, const Deadline& end)
    : core_(std::move(core)), options_(options), end_(end) {}

int64_t CoreSearch::pricing_work(const Core& core, int sweeps) const {
  double entries = 0;
  for (const Problem::Edge& edge : core.problem.edges)
    entries += static_cast<double>(edge.cost.size());
  return static_cast<int64_t>(kCoreSearch.sweep_work * entries * sweeps);
}

/// Of an amount of work that suits large cores, what suits this one.
int64_t CoreSearch::fair(int64_t work) const {
  double strategies = 0;
  for (const Problem::Node& node : core_.problem.nodes)
    strategies += static_cast<double>(node.cost.size());
  return static_cast<int64_t>(
      static_cast<double>(work) *
      std::clamp(strategies / kCoreSearch.large_core, kCoreSearch.least_effort, 1.0));
}

RegionSearchLimits CoreSearch::repair_limits() const {
  RegionSearchLimits some = limits(0);
  some.deadline = end_.within(kCoreSearch.repair_fraction * end_.left());
  some.work = std::max(fair(kCoreSearch.repair_work), kCoreSearch.first_patience);
  if (options_.nodes > 0)
    some.work = std::clamp(options_.nodes - work_, kCoreSearch.first_patience, some.work);
  return some;
}

RegionSearchLimits CoreSearch::limits(int64_t patience) const {
  const double target = lower_bound() + kRounding * std::abs(lower_bound());
  return {end_, 0, target, patience};
}

void CoreSearch::price(const Deadline& until) {
  PriceSearchLimits limits;
  limits.sweeps = kCoreSearch.sweeps;
  limits.progress = [&] {
    return options_.nodes > 0 && !until.passed()
               ? 0.0
               : until.used_fraction();  // a budget knows no clock
  };
  core_.prices.run(limits);
  work_ += pricing_work(core_, kCoreSearch.sweeps);
  slacks_.clear();
  for (int i = 0; i < core_.flat.size(); ++i) {
    const std::span<const double> slack = core_.bound.slack(i);
    if (slack.size() > 1) slacks_.insert(slacks_.end(), slack.begin(), slack.end());
  }
  std::sort(slacks_.begin(), slacks_.end());
}

bool CoreSearch::start(const Solution* known, int most) {
  const int threads = std::max(1, options_.threads);
  for (int tried = 0; elites_.empty() && tried < most && (tried == 0 || !exhausted()); ++tried) {
    const uint64_t attempt = attempts_++;
    const double emphasis = kCoreSearch.emphasis[attempt % kCoreSearch.emphasis.size()];
    const Solution decoded = emphasis == 1
                                 ? core_.bound.decoded()
                                 : core_.prices.decode(emphasis, [&] { return end_.passed(); });
    std::vector<Found> found(at(threads));
    std::vector<Found> tight(at(threads));
    std::vector<int64_t> work(at(threads), 1);  // an attempt is never for nothing: a budget ends it
    share(threads, threads, [&](int thread) {
      const size_t t = at(thread);
      RegionSearch search(
          core_.flat,
          (options_.seed + kCoreSearch.attempt_seed * attempt) * kCoreSearch.most_threads + t);
      const RegionSearchLimits some = repair_limits();
      search.set(decoded, core_.prices.price());
      bool fits = search.repair(some);
      if (known != nullptr && (!fits || raw_cost(core_.problem, *known) < search.cost())) {
        search.set(*known, core_.prices.price());
        fits = search.repair(some);
      }
      if (!fits) tight[t] = {search.overflow(), search.choice()};
      if (fits) {
        search.improve(limits(fair(kCoreSearch.first_patience)));
        found[t] = {raw_cost(core_.problem, search.choice()), search.choice()};
      }
      work[t] += search.work();
    });
    for (size_t t = 0; t < at(threads); ++t) {
      if (tight[t].cost < tightest_.cost) tightest_ = std::move(tight[t]);
      keep_best(elites_, std::move(found[t]));
      work_ += work[t];
    }
  }
  return !elites_.empty();
}

/// Keeps the strategies up to some slack, and searches that.
void CoreSearch::search_neighbourhood(Worker& worker, uint64_t seed) const {
  const Deadline begin = end_.within(end_.left());
  std::mt19937_64 random(seed);
  // Small neighbourhoods are searched well and soon; large ones hold what small ones miss.
  const double even = uniform(random);
  const double most = stale_ < kCoreSearch.stale_rounds ? kCoreSearch.most_kept : 1.0;
  const double fraction = kCoreSearch.least_kept + (most - kCoreSearch.least_kept) * even * even;
  const size_t rank = static_cast<size_t>(fraction * static_cast<double>(slacks_.size()));
  const double threshold = slacks_.empty() ? 0.0 : slacks_[std::min(rank, slacks_.size() - 1)];
  std::vector<const Found*> elites;
  for (const Found& elite : worker.elites) {
    if (stale_ < kCoreSearch.stale_rounds || uniform(random) < kCoreSearch.elite_fraction)
      elites.push_back(&elite);
  }
  Kept kept;
  for (int i = 0; i < core_.flat.size(); ++i) {
    const double mine = threshold * std::exp(kCoreSearch.spread * (2 * uniform(random) - 1));
    const std::span<const double> slack = core_.bound.slack(i);
    std::vector<int>& strategies = kept.emplace_back();
    for (int a = 0; a < std::ssize(slack); ++a) {
      const auto has = [&](const Found* e) { return e->choice[static_cast<size_t>(i)] == a; };
      if (slack[static_cast<size_t>(a)] <= mine || std::any_of(elites.begin(), elites.end(), has))
        strategies.push_back(a);
    }
  }
  Reducer reducer(restricted(core_.problem, kept));
  const auto late = [&] { return end_.passed(); };
  if (!reducer.run(Reducer::kQuickWork, late)) return;
  Core part(reducer.core());
  PriceSearchLimits pricing_limits;
  pricing_limits.sweeps = kCoreSearch.neighbourhood_sweeps;
  pricing_limits.progress = [&] { return end_.passed() ? 1.0 : 0.0; };
  part.prices.run(pricing_limits);
  worker.setup = std::max(kCoreSearch.setup_past * worker.setup, begin.elapsed());
  worker.work += pricing_work(core_, 1) + pricing_work(part, kCoreSearch.neighbourhood_sweeps);

  RegionSearch search(part.flat, seed);
  const RegionSearchLimits some = limits(fair(kCoreSearch.neighbourhood_patience));
  const auto offer = [&] {
    Solution whole = expanded(reducer.expand(search.choice()), kept);
    const double cost = raw_cost(core_.problem, whole);
    keep_best(worker.elites, {cost, std::move(whole)});
  };
  search.set(part.bound.decoded(), part.prices.price());
  std::optional<Solution> best;
  if (!elites.empty()) best = reducer.restrict(*choices_in(elites.front()->choice, kept));
  if (search.repair(repair_limits())) {
    search.improve(some);
    offer();
  }
  if (best) {
    search.set(*best, search.price());
    if (search.overflow() <= 0) {
      search.improve(some);
      offer();
    }
  }
  worker.work += search.work();
}

bool CoreSearch::exhausted() const {
  return end_.left() <= kCoreSearch.setups_left * setup_ ||
         (options_.nodes > 0 && work_ >= options_.nodes);
}

bool CoreSearch::round() {
  const double before = elites_.front().cost;
  const int threads = std::max(1, options_.threads);
  std::vector<Worker> workers(at(threads));
  for (size_t t = 0; t < workers.size(); ++t) {
    workers[t].elites = elites_;
    workers[t].seed =
        ((options_.seed + 1) * kCoreSearch.round_seed + rounds_) * kCoreSearch.most_threads + t;
    workers[t].setup = setup_;
  }
  share(threads, threads, [&](int t) {
    Worker& worker = workers[at(t)];
    std::mt19937_64 seeds(worker.seed);
    while (worker.work < fair(kCoreSearch.round_work) &&
           end_.left() > kCoreSearch.setups_left * worker.setup)
      search_neighbourhood(worker, seeds());
  });
  for (Worker& worker : workers) {
    for (Found& found : worker.elites) keep_best(elites_, std::move(found));
    work_ += worker.work;
    setup_ = std::max(kCoreSearch.setup_past * setup_, worker.setup);
  }
  ++rounds_;
  stale_ = elites_.front().cost < before - kCoreSearch.gain * std::abs(before) ? 0 : stale_ + 1;
  return elites_.front().cost < before - kRounding * std::abs(before);
}

CoreSearch::Excluded CoreSearch::excluded(double cost) {
  Excluded out;
  const std::vector<Problem::Edge>& edges = core_.problem.edges;
  out.pairs.resize(edges.size());
  const auto margin = [&] {
    const double bound = core_.bound.bound_before_sweep() - core_.prices.priced_limit();
    return cost + kRounding * std::abs(cost) - bound;
  };
  core_.bound.sweep([&](int e, int node, int other, const double* slack, size_t stride) {
    const double most = margin();
    std::vector<bool>& gone = out.pairs[static_cast<size_t>(e)];
    const bool from_other = edges[static_cast<size_t>(e)].from == other;
    const size_t own = static_cast<size_t>(core_.flat.strategies(node)),
                 others = static_cast<size_t>(core_.flat.strategies(other));
    gone.resize(own * others);
    for (size_t b = 0; b < others; ++b) {
      for (size_t a = 0; a < own; ++a)
        gone[from_other ? b * own + a : a * others + b] = slack[b * stride + a] > most;
    }
  });
  for (int i = 0; i < core_.flat.size(); ++i) {
    std::vector<bool>& gone = out.strategies.emplace_back();
    for (double slack : core_.bound.slack(i)) gone.push_back(slack > margin());
  }
  return out;
}

std::vector<size_t> CoreSearch::scarcest_times(size_t most) const {
  std::vector<size_t> result;
  const std::vector<double>& price = core_.prices.price();
  for (size_t t = 0; t < price.size(); ++t) {
    if (price[t] > 0) result.push_back(t);
  }
  std::stable_sort(result.begin(), result.end(),
                   [&](size_t s, size_t t) { return price[s] > price[t]; });
  if (result.size() > most) result.resize(most);
  return result;
}

}  // namespace shardrun
