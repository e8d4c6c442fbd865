// Drawing regions, and making the moves that RegionSolver finds.
#include "planner/contest/region_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace shardrun {
namespace {

/// Which regions are drawn, and how a repair's penalty rises.
struct RegionSearchSettings {
  // Draws. An arm is a size, a kind and a limit of the tables.
  std::array<size_t, 5> sizes{16, 32, 64, 128, 250};  // nodes of a region; at most kMostNodes
  std::array<size_t, 3> parts{1, 3, 12};   // by kind: around one node, or around several at a time
  std::array<double, 2> tables{2e4, 3e5};  // entries of a table at most
  double all_tables = 10;                  // of a region together, as multiple of that
  double forget = 0.999;                   // of an arm's past, per region: what helps changes
  double even = 0.2;                       // fraction of the draws that do not look at the past
  int alive_draws = 300;                   // of nodes until one is alive at a time
  size_t oldest = 4;  // of the front one in so many is next: round regions, with ragged edges
  // Prices and costs, in regions.
  int price_refresh = 32;      // between two looks at the prices
  double price_weight = 0.3;   // of a region's prices in the known ones
  int settle = 256;            // after which costs are summed anew: no drift
  int64_t work_per_node = 50;  // what setting a region up costs
  // Repair: small and soon, since many are needed. Not around one node, nor of the smallest size.
  double penalty = 1e-3;       // first, fraction of the cost for the whole limit
  int failures = 12;           // in vain before the penalty doubles
  int64_t repair_nodes = 500;  // of a region's search tree
  double repair_table = 5e3;   // entries of a table at most

  constexpr size_t arms() const { return sizes.size() * parts.size() * tables.size(); }
};
constexpr RegionSearchSettings kRegionSearch;
constexpr size_t kArms = kRegionSearch.arms(), kKinds = kRegionSearch.parts.size();

}  // namespace

RegionSearch::RegionSearch(const FlatProblem& flat, uint64_t seed)
    : flat_(flat),
      solver_(flat),
      random_((seed + 1) * 0x9E3779B97F4A7C15ull),
      arms_(kArms),
      taken_(static_cast<size_t>(flat.size()), 0) {
  for (int i = 0; i < flat.size(); ++i) {
    if (flat.strategies(i) > 1) free_.push_back(i);
  }
}

void RegionSearch::set(const Solution& choice, const std::vector<double>& price) {
  state_.choice = choice;
  state_.use = flat_.usage(choice);
  state_.cost = raw_cost(flat_.problem(), choice);
  state_.price = price;
}

bool RegionSearch::alive_at(int node, int time) const {
  for (const FlatProblem::Range& range : flat_.ranges(node)) {
    if (range.first <= time && time < range.end) return true;
  }
  return false;
}

int RegionSearch::random_alive(int time) {
  for (int attempt = 0; attempt < kRegionSearch.alive_draws; ++attempt) {
    const int node = random_free();
    if (alive_at(node, time)) return node;
  }
  return random_free();
}

/// A time drawn by its price, -1 if none has one.
int RegionSearch::random_scarce() {
  if (priced_before_.empty() || !(priced_before_.back() > 0)) return -1;
  const double draw = uniform(random_) * priced_before_.back();
  const auto found = std::upper_bound(priced_before_.begin(), priced_before_.end(), draw);
  return static_cast<int>(std::min(found, priced_before_.end() - 1) - priced_before_.begin());
}

/// Adds nodes within random reach of `from` to the region, up to `size` in all.
void RegionSearch::grow(int from, size_t size) {
  front_.assign(1, from);
  while (!front_.empty() && nodes_.size() < size) {
    const size_t pick = random_() % std::min(front_.size(), kRegionSearch.oldest);
    const int node = front_[pick];
    front_.erase(front_.begin() + static_cast<std::ptrdiff_t>(pick));
    int& taken = taken_[static_cast<size_t>(node)];
    if (taken == region_number_) continue;
    taken = region_number_;
    if (flat_.strategies(node) > 1) nodes_.push_back(node);
    for (const FlatProblem::Arc& arc : flat_.arcs(node)) {
      if (taken_[static_cast<size_t>(arc.other)] != region_number_) front_.push_back(arc.other);
    }
  }
}

void RegionSearch::region(size_t kind, size_t size, int time) {
  nodes_.clear();
  ++region_number_;
  if (time < 0) kind = 0;
  const size_t parts = kRegionSearch.parts[kind];
  for (size_t part = 1; part <= parts; ++part) {
    const int from = kind == 0 ? random_free() : random_alive(time);
    grow(from, std::max(size * part / parts, kind == 2 ? nodes_.size() + 1 : 0));
  }
  if (nodes_.size() > static_cast<size_t>(RegionSolver::kMostNodes))
    nodes_.resize(static_cast<size_t>(RegionSolver::kMostNodes));
}

/// Cost of the changed nodes and of the edges at them.
double RegionSearch::cost_around(const std::vector<std::pair<int, int>>& changes) const {
  double cost = 0;
  for (const auto& [node, unused] : changes) {
    const size_t own = static_cast<size_t>(state_.choice[static_cast<size_t>(node)]);
    const size_t width = static_cast<size_t>(flat_.strategies(node));
    cost += flat_.cost(node)[own];
    for (const FlatProblem::Arc& arc : flat_.arcs(node)) {
      const bool both =
          std::binary_search(changes.begin(), changes.end(), std::pair<int, int>{arc.other, 0},
                             [](const auto& a, const auto& b) { return a.first < b.first; });
      const size_t other = static_cast<size_t>(state_.choice[static_cast<size_t>(arc.other)]);
      const double pair = arc.by_other[other * width + own];
      cost += both ? pair / 2 : pair;
    }
  }
  return cost;
}

void RegionSearch::move_bytes(const std::vector<std::pair<int, int>>& changes, int64_t sign) {
  for (size_t c = 0; c < changes.size(); ++c) {
    for (const FlatProblem::Range& range : flat_.ranges(changes[c].first)) {
      const int64_t more = sign * (range.bytes[changes[c].second] - range.bytes[old_[c]]);
      if (more == 0) continue;
      for (int t = range.first; t < range.end; ++t) state_.use[static_cast<size_t>(t)] += more;
    }
  }
}

/// `changes` by node. True if the move was made.
bool RegionSearch::apply(const std::vector<std::pair<int, int>>& changes, bool only_if_better) {
  if (changes.empty()) return false;
  const double before = cost_around(changes);
  old_.clear();
  for (const auto& [node, to] : changes) {
    old_.push_back(state_.choice[static_cast<size_t>(node)]);
    state_.choice[static_cast<size_t>(node)] = to;
  }
  const double after = cost_around(changes);
  move_bytes(changes, 1);
  bool good = !only_if_better || after < before;
  if (good && only_if_better) {
    good = state_.use.empty() ||
           *std::max_element(state_.use.begin(), state_.use.end()) <= flat_.limit();
  }
  if (good) {
    state_.cost += after - before;
    return true;
  }
  move_bytes(changes, -1);
  for (size_t c = 0; c < changes.size(); ++c)
    state_.choice[static_cast<size_t>(changes[c].first)] = old_[c];
  return false;
}

/// Regions at the times above the limit, with a price on what is above that rises while nothing
/// helps.
bool RegionSearch::repair(const RegionSearchLimits& limits) {
  double penalty = 0;
  int failures = 0;
  std::vector<int> over;
  const int64_t begin = work_;
  for (;;) {
    over.clear();
    for (size_t t = 0; t < state_.use.size(); ++t) {
      if (state_.use[t] > flat_.limit()) over.push_back(static_cast<int>(t));
    }
    if (over.empty()) return true;
    if (free_.empty() || limits.deadline.passed()) return false;
    if (limits.work > 0 && work_ - begin >= limits.work) return false;
    if (penalty == 0) {
      penalty = kRegionSearch.penalty * std::max(std::abs(state_.cost), 1e-30) /
                static_cast<double>(std::max<int64_t>(1, flat_.limit())) /
                static_cast<double>(over.size());
    }
    RegionSolver::Limits region_limits;
    region_limits.penalty = penalty;
    region_limits.nodes = kRegionSearch.repair_nodes;
    region_limits.table = kRegionSearch.repair_table;
    const size_t size = kRegionSearch.sizes[1 + random_() % (kRegionSearch.sizes.size() - 1)];
    const int time = over[random_() % over.size()];
    region(1 + random_() % (kKinds - 1), size, time);
    RegionMove move = solver_.solve(state_, nodes_, region_limits);
    std::sort(move.changes.begin(), move.changes.end());
    work_ += move.work + kRegionSearch.work_per_node * static_cast<int64_t>(nodes_.size());
    if (apply(move.changes, false)) {
      failures = 0;
    } else if (++failures > kRegionSearch.failures) {
      penalty *= 2;
      failures = 0;
    }
  }
}

/// Arms are drawn by what they gained for their work of late.
RegionSearch::Pick RegionSearch::draw() {
  double total = 0;
  for (const Arm& arm : arms_) total += arm.gain / arm.work;
  Pick pick;
  pick.arm = random_() % kArms;
  if (total > 0 && uniform(random_) >= kRegionSearch.even) {
    double draw = uniform(random_) * total;
    pick.arm = 0;
    while (pick.arm + 1 < kArms && draw > arms_[pick.arm].gain / arms_[pick.arm].work) {
      draw -= arms_[pick.arm].gain / arms_[pick.arm].work;
      ++pick.arm;
    }
  }
  pick.kind = pick.arm % kKinds;
  pick.size = kRegionSearch.sizes[pick.arm / kKinds % kRegionSearch.sizes.size()];
  pick.table = kRegionSearch.tables[pick.arm / (kKinds * kRegionSearch.sizes.size())];
  return pick;
}

void RegionSearch::improve(const RegionSearchLimits& limits) {
  if (free_.empty()) return;
  const int64_t begin = work_;
  // Costs at past amounts of work: gains of the last third are read from here.
  std::vector<std::pair<int64_t, double>> past{{work_, state_.cost}};
  size_t third = 0;
  for (int64_t round = 0; !limits.deadline.passed(); ++round) {
    if (limits.work > 0 && work_ - begin >= limits.work) return;
    if (state_.cost <= limits.target) return;
    if (round % kRegionSearch.price_refresh == 0) {
      priced_before_.resize(state_.price.size());
      std::partial_sum(state_.price.begin(), state_.price.end(), priced_before_.begin());
    }
    if (limits.patience > 0) {
      past.push_back({work_, state_.cost});
      const int64_t span = std::max(limits.patience, (work_ - begin) / 3);
      while (third + 1 < past.size() && past[third + 1].first <= work_ - span) ++third;
      if (past[third].first <= work_ - span &&
          past[third].second - state_.cost < kStale * std::abs(state_.cost))
        return;
    }
    const Pick pick = draw();
    RegionSolver::Limits region_limits;
    region_limits.table = pick.table;
    region_limits.tables = kRegionSearch.all_tables * pick.table;
    region(pick.kind, pick.size, random_scarce());
    RegionMove move = solver_.solve(state_, nodes_, region_limits);
    std::sort(move.changes.begin(), move.changes.end());
    for (const auto& [t, price] : move.price) {
      double& known = state_.price[static_cast<size_t>(t)];
      known = (1 - kRegionSearch.price_weight) * known + kRegionSearch.price_weight * price;
    }
    move.work += kRegionSearch.work_per_node * static_cast<int64_t>(nodes_.size());
    work_ += move.work;
    for (Arm& arm : arms_)
      arm.gain *= kRegionSearch.forget, arm.work = 1 + kRegionSearch.forget * (arm.work - 1);
    arms_[pick.arm].work += static_cast<double>(move.work);
    if (apply(move.changes, true)) arms_[pick.arm].gain += move.gain;
    if (round % kRegionSearch.settle == kRegionSearch.settle - 1)
      set(Solution(state_.choice), std::vector<double>(state_.price));
  }
}

}  // namespace shardrun
