// Large-neighbourhood search with exact regions.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "planner/bound.h"
#include "planner/highs_mip.h"
#include "planner/pricing.h"
#include "planner/reductions.h"
#include "planner/region.h"
#include "planner/solver.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kElimination = 2e4;  // the work of one elimination in the reductions
constexpr size_t kSmallCore = 1500;   // nodes: up to here a proof is within reach
constexpr double kSmallMip = 1.2e6;   // and so many edge variables
constexpr int kBatch = 16;            // regions a thread solves between two meetings
constexpr int kSizes[] = {16, 32, 64, 128, 250};
constexpr int kKinds = 3;
constexpr double kTables[] = {2e4, 3e5};  // entries of a region's tables at most
constexpr double kRounding = 1e-9;        // relative: sums in another order differ by less
constexpr double kExact = 1e-12;          // relative: what HiGHS is asked for
constexpr int kRemovals = 4;              // rounds of bound, search and removal before a proof

/// Costs of forbidden choices become finite but larger than any solution that is allowed.
void tame(Problem& problem) {
  double sum = 0;
  bool forbidden = false;
  const auto look = [&](const std::vector<double>& costs) {
    double most = 0;
    for (double c : costs) {
      if (c == kInfeasible) forbidden = true;
      if (c != kInfeasible) most = std::max(most, std::abs(c));
    }
    sum += most;
  };
  for (const Problem::Node& node : problem.nodes) look(node.cost);
  for (const Problem::Edge& edge : problem.edges) look(edge.cost);
  if (!forbidden) return;
  const auto replace = [&](std::vector<double>& costs) {
    std::replace(costs.begin(), costs.end(), kInfeasible, 4 * sum + 1);
  };
  for (Problem::Node& node : problem.nodes) replace(node.cost);
  for (Problem::Edge& edge : problem.edges) replace(edge.cost);
}

class Search {
 public:
  Search(const Problem& core, const SolveOptions& options, Clock::time_point end)
      : problem_(core), options_(options), end_(end), bound_(core), pricing_(problem_, bound_) {
    state_.choice.assign(core.nodes.size(), 0);
    state_.price.assign(static_cast<size_t>(problem_.times()), 0.0);
    for (int i = 0; i < problem_.size(); ++i) {
      if (problem_.strategies(i) > 1) free_.push_back(i);
    }
  }

  double lower_bound() const { return pricing_.lower_bound(); }
  const Solution& choice() const { return state_.choice; }

  void run(const Solution* start, double target, double price_share) {
    const auto begin = Clock::now();
    const double seconds = std::chrono::duration<double>(end_ - begin).count() * price_share;
    PricingLimits limits;
    limits.progress = [&] {
      const double share = std::chrono::duration<double>(Clock::now() - begin).count() / seconds;
      return options_.nodes > 0 && share < 1 ? 0.0 : share;  // a node budget knows no clock
    };
    pricing_.run(limits);
    state_.price = pricing_.price();
    set(bound_.decoded());
    repair();
    if (start != nullptr) {
      SearchState found = state_;
      set(*start);
      repair();
      if (overflow() > found_overflow(found) ||
          (overflow() == found_overflow(found) && state_.cost > found.cost))
        state_ = std::move(found);
    }
    if (overflow() > 0) return;
    improve(target);
  }

  /// Per node: the strategies that no solution cheaper than `cost` has.
  std::vector<std::vector<bool>> removable(double cost) const {
    std::vector<std::vector<bool>> result;
    const double room =
        cost + kRounding * std::abs(cost) - (bound_.bound_before_sweep() - pricing_.priced_limit());
    for (int i = 0; i < problem_.size(); ++i) {
      std::vector<bool>& gone = result.emplace_back();
      for (double slack : bound_.slack(i)) gone.push_back(slack > room);
    }
    return result;
  }

 private:
  bool late() const { return Clock::now() >= end_; }
  void set(const Solution& choice) {
    state_.choice = choice;
    state_.use = problem_.usage(choice);
    state_.cost = raw_cost(problem_.problem(), choice);
  }
  double found_overflow(const SearchState& state) const {
    double sum = 0;
    for (int64_t bytes : state.use)
      sum += static_cast<double>(std::max<int64_t>(0, bytes - problem_.limit()));
    return sum;
  }
  double overflow() const { return found_overflow(state_); }

  /// Nodes within random reach of `from`, up to `size` in all.
  void grow(std::vector<int>& nodes, std::vector<char>& taken, int from, size_t size,
            std::mt19937_64& random) const {
    std::vector<int> front{from};
    while (!front.empty() && nodes.size() < size) {
      // Mostly the oldest: round regions, with ragged edges.
      const size_t pick = random() % std::min<size_t>(front.size(), 4);
      const int node = front[pick];
      front.erase(front.begin() + static_cast<std::ptrdiff_t>(pick));
      if (taken[static_cast<size_t>(node)] != 0) continue;
      taken[static_cast<size_t>(node)] = 1;
      if (problem_.strategies(node) > 1) nodes.push_back(node);
      for (const FlatProblem::Arc& arc : problem_.arcs(node)) {
        if (taken[static_cast<size_t>(arc.other)] == 0) front.push_back(arc.other);
      }
    }
  }

  int random_free(std::mt19937_64& random) const { return free_[random() % free_.size()]; }
  bool alive_at(int node, int time) const {
    for (const FlatProblem::Range& range : problem_.ranges(node)) {
      if (range.first <= time && time < range.end) return true;
    }
    return false;
  }
  int random_alive(int time, std::mt19937_64& random) const {
    for (int attempt = 0; attempt < 300; ++attempt) {
      const int node = random_free(random);
      if (alive_at(node, time)) return node;
    }
    return random_free(random);
  }
  /// A time drawn by its price, -1 if none has one.
  int random_tight(std::mt19937_64& random) const {
    if (priced_before_.empty() || !(priced_before_.back() > 0)) return -1;
    const double draw = static_cast<double>(random() >> 11) * 0x1p-53 * priced_before_.back();
    const auto found = std::upper_bound(priced_before_.begin(), priced_before_.end(), draw);
    return static_cast<int>(std::min(found, priced_before_.end() - 1) - priced_before_.begin());
  }

  std::vector<int> region(int kind, size_t size, int time, std::mt19937_64& random) const {
    std::vector<int> nodes;
    std::vector<char> taken(static_cast<size_t>(problem_.size()), 0);
    if (time < 0) kind = 0;
    if (kind == 0) {
      grow(nodes, taken, random_free(random), size, random);
    } else if (kind == 1) {
      for (size_t part = 1; part <= 3; ++part)
        grow(nodes, taken, random_alive(time, random), size * part / 3, random);
    } else {
      for (size_t part = 1; part <= 12; ++part)
        grow(nodes, taken, random_alive(time, random), std::max(size * part / 12, nodes.size() + 1),
             random);
    }
    if (nodes.size() > static_cast<size_t>(RegionSolver::kMostNodes))
      nodes.resize(static_cast<size_t>(RegionSolver::kMostNodes));
    return nodes;
  }

  /// True if the move still gains, and then it is made.
  bool apply(SearchState& state, const std::vector<std::pair<int, int>>& changes,
             bool only_if_better) const {
    if (changes.empty()) return false;
    const auto around = [&] {
      double cost = 0;
      for (const auto& [node, unused] : changes) {
        const size_t own = static_cast<size_t>(state.choice[static_cast<size_t>(node)]);
        cost += problem_.cost(node)[own];
        const size_t width = static_cast<size_t>(problem_.strategies(node));
        for (const FlatProblem::Arc& arc : problem_.arcs(node)) {
          const bool both =
              std::binary_search(changes.begin(), changes.end(), std::pair<int, int>{arc.other, 0},
                                 [](const auto& a, const auto& b) { return a.first < b.first; });
          const double pair =
              arc.by_other[static_cast<size_t>(state.choice[static_cast<size_t>(arc.other)]) *
                               width +
                           own];
          cost += both ? pair / 2 : pair;
        }
      }
      return cost;
    };
    std::vector<int> old;
    const double before = around();
    for (const auto& [node, to] : changes) {
      old.push_back(state.choice[static_cast<size_t>(node)]);
      state.choice[static_cast<size_t>(node)] = to;
    }
    const double after = around();
    const auto move_bytes = [&](int64_t sign) {
      for (size_t c = 0; c < changes.size(); ++c) {
        for (const FlatProblem::Range& range : problem_.ranges(changes[c].first)) {
          const int64_t more = sign * (range.bytes[changes[c].second] - range.bytes[old[c]]);
          if (more == 0) continue;
          for (int t = range.first; t < range.end; ++t) state.use[static_cast<size_t>(t)] += more;
        }
      }
    };
    move_bytes(1);
    bool good = !only_if_better || after < before;
    if (good && only_if_better) {
      good = state.use.empty() ||
             *std::max_element(state.use.begin(), state.use.end()) <= problem_.limit();
    }
    if (good) {
      state.cost += after - before;
      return true;
    }
    move_bytes(-1);
    for (size_t c = 0; c < changes.size(); ++c)
      state.choice[static_cast<size_t>(changes[c].first)] = old[c];
    return false;
  }

  /// Regions at the times above the limit, with a price on what is above that rises while nothing
  /// helps.
  void repair() {
    RegionSolver solver(problem_);
    std::mt19937_64 random(options_.seed * 2654435761u + 77);
    double penalty = 0;
    int failures = 0;
    std::vector<int> over;
    for (int round = 0; round < 100000 && !late(); ++round) {
      over.clear();
      for (size_t t = 0; t < state_.use.size(); ++t) {
        if (state_.use[t] > problem_.limit()) over.push_back(static_cast<int>(t));
      }
      if (over.empty()) return;
      if (penalty == 0) {
        penalty = 1e-3 * std::abs(state_.cost) / static_cast<double>(problem_.limit()) /
                  static_cast<double>(over.size());
      }
      RegionSolver::Limits limits;
      limits.penalty = penalty;
      limits.nodes = 500;
      limits.table = 5e3;
      const size_t size = static_cast<size_t>(kSizes[1 + random() % 4]);
      const int time = over[random() % over.size()];
      RegionMove move = solver.solve(
          state_, region(1 + static_cast<int>(random() % 2), size, time, random), limits);
      std::sort(move.changes.begin(), move.changes.end());
      work_ += move.work;
      if (!move.changes.empty() && apply(state_, move.changes, false)) {
        failures = 0;
      } else if (++failures > 12) {
        penalty *= 2;
        failures = 0;
      }
    }
  }

  struct Arm {
    double gain = 0, work = 1;
  };

  void improve(double target) {
    const int threads = std::max(1, options_.threads);
    std::vector<SearchState> copies(static_cast<size_t>(threads), state_);
    std::vector<RegionSolver> solvers;
    for (int i = 0; i < threads; ++i) solvers.emplace_back(problem_);
    std::vector<Arm> arms(std::size(kSizes) * kKinds * std::size(kTables));
    struct Done {
      size_t arm = 0;
      RegionMove move;
    };
    std::vector<std::vector<Done>> done(static_cast<size_t>(threads));
    for (uint64_t round = 0; !late() && (options_.nodes == 0 || work_ < options_.nodes) &&
                             state_.cost > target && !free_.empty();
         ++round) {
      priced_before_.resize(state_.price.size());
      std::partial_sum(state_.price.begin(), state_.price.end(), priced_before_.begin());
      // Arms are drawn by what they gained for their work of late; a fifth of the draws is even.
      double total = 0;
      for (const Arm& arm : arms) total += arm.gain / arm.work;
      const auto part = [&](size_t thread) {
        std::mt19937_64 random((options_.seed + 1) * 0x9E3779B97F4A7C15ull + round * 64 + thread);
        SearchState& mine = copies[thread];
        done[thread].clear();
        for (int i = 0; i < kBatch && !late(); ++i) {
          size_t arm = random() % arms.size();
          if (total > 0 && random() % 5 != 0) {
            double draw = static_cast<double>(random() % 1000003) / 1000003.0 * total;
            arm = 0;
            while (arm + 1 < arms.size() && draw > arms[arm].gain / arms[arm].work)
              draw -= arms[arm].gain / arms[arm].work, ++arm;
          }
          const size_t size = static_cast<size_t>(kSizes[arm / kKinds % std::size(kSizes)]);
          RegionSolver::Limits limits;
          limits.table = kTables[arm / (kKinds * std::size(kSizes))];
          limits.tables = 10 * limits.table;
          const std::vector<int> nodes =
              region(static_cast<int>(arm % kKinds), size, random_tight(random), random);
          Done result{arm, solvers[thread].solve(mine, nodes, limits)};
          std::sort(result.move.changes.begin(), result.move.changes.end());
          for (const auto& [t, price] : result.move.price)
            mine.price[static_cast<size_t>(t)] =
                0.7 * mine.price[static_cast<size_t>(t)] + 0.3 * price;
          if (!apply(mine, result.move.changes, true)) result.move.changes.clear();
          result.move.work += 50 * static_cast<int64_t>(nodes.size());
          done[thread].push_back(std::move(result));
        }
      };
      std::vector<std::thread> others;
      for (size_t t = 1; t < copies.size(); ++t) others.emplace_back(part, t);
      part(0);
      for (std::thread& other : others) other.join();
      for (Arm& arm : arms) arm.gain *= 0.99, arm.work = 1 + 0.99 * (arm.work - 1);
      for (const std::vector<Done>& list : done) {
        for (const Done& one : list) {
          work_ += one.move.work;
          arms[one.arm].work += static_cast<double>(one.move.work);
          if (apply(state_, one.move.changes, true)) arms[one.arm].gain += one.move.gain;
          for (const auto& [t, price] : one.move.price)
            state_.price[static_cast<size_t>(t)] =
                0.7 * state_.price[static_cast<size_t>(t)] + 0.3 * price;
        }
      }
      if (round % 16 == 0) set(state_.choice);  // no drift
      for (SearchState& copy : copies) copy = state_;
    }
  }

  FlatProblem problem_;
  const SolveOptions& options_;
  Clock::time_point end_;
  Bound bound_;
  MemoryPricing pricing_;
  SearchState state_;
  std::vector<int> free_;
  std::vector<double> priced_before_;  // sum of the prices up to each time, it included
  int64_t work_ = 0;
};

}  // namespace

SolveResult solve_lns(const Problem& problem, const SolveOptions& options) {
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::max(0.0, options.seconds)));
  SolveResult result;
  result.solver = "lns";
  const auto offer = [&](const Solution& solution) {
    const Evaluation judged = evaluate(problem, solution);
    if (judged.cost < result.cost) {
      result.cost = judged.cost;
      result.solution = solution;
    } else if (!result.solution && judged.raw_cost != kInfeasible) {
      result.tightest = solution;
    }
  };
  const auto finish = [&] {
    if (result.solution) {
      result.lower_bound = std::min(result.lower_bound, result.cost);
      result.proven_infeasible = false;
    }
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return result;
  };
  const auto after = [&](double seconds) {
    return std::min(end, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                            std::chrono::duration<double>(seconds)));
  };
  const auto proven = [&](const char* how) {
    result.solver = how;
    if (result.solution) result.lower_bound = result.cost;
    result.proven_infeasible = !result.solution;
    return finish();
  };
  if (options.start != nullptr) offer(*options.start);
  Reducer reducer(problem);
  Problem core;
  const auto search = [&](double seconds, double price_share) {
    core = reducer.core();
    tame(core);
    std::optional<Solution> start;
    if (result.solution) start = reducer.restrict(*result.solution);
    SolveOptions part = options;
    Search search(core, part, after(seconds));
    search.run(start ? &*start : nullptr, result.lower_bound * (1 + kExact), price_share);
    offer(reducer.expand(search.choice()));
    // Strategies that have been removed are in no better solution: the bound is of those.
    result.lower_bound = std::max(result.lower_bound, std::min(search.lower_bound(), result.cost));
    return result.solution ? search.removable(result.cost) : std::vector<std::vector<bool>>();
  };
  const auto small = [&] {
    return options.prove && reducer.core().nodes.size() <= kSmallCore &&
           mip_size(reducer.core()) <= kSmallMip;
  };
  if (!reducer.run(kElimination)) return proven("reduction");
  if (!small()) {
    search(options.seconds, 0.3);
    return finish();
  }
  for (int round = 0; round < kRemovals && Clock::now() < end; ++round) {
    const auto gone = search(std::min(5.0, 0.06 * options.seconds), 0.5);
    if (result.solution && result.cost <= result.lower_bound * (1 + kExact)) return proven("bound");
    size_t count = 0;
    for (size_t i = 1; i < gone.size(); ++i) {
      const size_t here = static_cast<size_t>(std::count(gone[i].begin(), gone[i].end(), true));
      if (here > 0) reducer.remove(static_cast<int>(i), gone[i]);
      count += here;
    }
    if (!reducer.run(kElimination)) return proven("bound");
    if (count == 0) break;
  }
  const double left = std::chrono::duration<double>(end - Clock::now()).count();
  std::optional<Solution> start;
  if (result.solution) start = reducer.restrict(*result.solution);
  if (start && evaluate(reducer.core(), *start).cost == kInfeasible) start.reset();
  const double known = result.cost;
  const MipResult mip =
      solve_mip(reducer.core(), start ? &*start : nullptr, 0.9 * left, options.seed, kExact);
  if (mip.solution) offer(reducer.expand(*mip.solution));
  if (mip.infeasible || mip.optimal) {
    // HiGHS' tolerances may hide the last digits; exact regions see them.
    if (result.solution) search(std::min(1.5, 0.05 * options.seconds), 0.1);
    return proven("mip");
  }
  result.lower_bound = std::max(result.lower_bound, std::min(mip.bound, known));
  search(options.seconds, 0.2);
  return finish();
}

}  // namespace shardrun
