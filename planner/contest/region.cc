// Bucket elimination and depth-first search in a region.
#include "planner/contest/region.h"

#include <algorithm>
#include <cmath>

#include "base/at.h"
#include "planner/solver/bytes_over_time.h"
#include "planner/solver/messages.h"

namespace shardrun {

RegionSolver::RegionSolver(const FlatProblem& problem)
    : problem_(problem), place_(static_cast<size_t>(problem.size()), -1), buckets_(kMostNodes) {}

/// Positions by smallest table first; what would exceed the table is left out.
void RegionSolver::order(const std::vector<int>& wanted, const Limits& limits) {
  const size_t n = std::min<size_t>(wanted.size(), kMostNodes);
  for (size_t i = 0; i < n; ++i) place_[static_cast<size_t>(wanted[i])] = static_cast<int>(i);
  std::vector<Bits> around(n);
  std::vector<double> size(n), table(n);
  Bits alive;
  for (size_t i = 0; i < n; ++i) {
    size[i] = problem_.strategies(wanted[i]);
    alive.set(i);
    for (const FlatProblem::Arc& arc : problem_.arcs(wanted[i])) {
      const int j = place_[static_cast<size_t>(arc.other)];
      if (j >= 0) around[i].set(static_cast<size_t>(j));
    }
  }
  const auto each = [](const Bits& bits, auto&& visit) {
    for (size_t i = bits._Find_first(); i < bits.size(); i = bits._Find_next(i)) visit(i);
  };
  const auto measure = [&](size_t i) {
    table[i] = size[i];
    each(around[i], [&](size_t j) { table[i] *= size[j]; });
  };
  for (size_t i = 0; i < n; ++i) measure(i);
  std::vector<size_t> sequence;
  std::vector<Bits> separators(n);
  double total = 0;
  while (alive.any()) {
    size_t next = alive._Find_first();
    each(alive, [&](size_t i) {
      if (table[i] < table[next]) next = i;
    });
    const bool fits = table[next] <= limits.table && total + table[next] <= limits.tables;
    if (!fits) {
      each(alive, [&](size_t i) {
        if (table[i] > table[next]) next = i;
      });
    }
    alive.reset(next);
    const Bits near = around[next];
    each(near, [&](size_t i) {
      if (fits) around[i] |= near;
      around[i].reset(i);
      around[i].reset(next);
    });
    each(near, measure);
    if (!fits) continue;
    separators[next] = near;
    sequence.push_back(next);
    total += table[next];
  }
  for (size_t i = 0; i < n; ++i) place_[static_cast<size_t>(wanted[i])] = -1;
  count_ = sequence.size();
  table_entries_ = static_cast<int64_t>(total);
  std::vector<int> position(n, -1);
  for (size_t p = 0; p < count_; ++p) {
    position[sequence[p]] = static_cast<int>(p);
    place_[static_cast<size_t>(wanted[sequence[p]])] = static_cast<int>(p);
  }
  for (size_t p = 0; p < count_; ++p) {
    Bucket& bucket = buckets_[p];
    bucket.node = wanted[sequence[p]];
    bucket.size = problem_.strategies(bucket.node);
    bucket.separator.clear();
    each(separators[sequence[p]], [&](size_t j) {
      if (position[j] >= 0) bucket.separator.push_back(position[j]);  // else left out later
    });
    std::sort(bucket.separator.rbegin(), bucket.separator.rend());
  }
}

void RegionSolver::build(const RegionState& state, const Limits& limits) {
  Spans spans = spans_of(state);
  choose_segments(state, limits, spans);
  set_costs(state, limits, spans);
  place_messages();
}

RegionSolver::Spans RegionSolver::spans_of(const RegionState& state) {
  Spans out;
  std::vector<int>& cuts = out.cuts;
  for (size_t p = 0; p < count_; ++p) {
    for (const FlatProblem::Range& range : problem_.ranges(buckets_[p].node)) {
      cuts.push_back(range.first);
      cuts.push_back(range.end);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  out.count = cuts.empty() ? 0 : cuts.size() - 1;
  BytesOverTime now(static_cast<int>(out.count)), most(static_cast<int>(out.count));
  out.starts.assign(out.count + 1, 0);
  out.ends.assign(out.count + 1, 0);
  const auto cut_of = [&](int time) {
    return static_cast<int>(std::lower_bound(cuts.begin(), cuts.end(), time) - cuts.begin());
  };
  for (size_t p = 0; p < count_; ++p) {
    Bucket& bucket = buckets_[p];
    bucket.ranges.clear();
    const int chosen = state.choice[static_cast<size_t>(bucket.node)];
    for (const FlatProblem::Range& range : problem_.ranges(bucket.node)) {
      const int first = cut_of(range.first), end = cut_of(range.end);
      const auto [low, high] = std::minmax_element(range.bytes, range.bytes + bucket.size);
      bucket.ranges.push_back({first, end, range.bytes, *low});
      now.add(first, end, range.bytes[chosen]);
      most.add(first, end, *high);
      out.starts[at(first)] = 1;
      out.ends[at(end)] = 1;
    }
  }
  out.now = now.values();
  out.most = most.values();
  return out;
}

/// Segments are the spans in which the region can exceed its capacity and that no other one
/// implies.
void RegionSolver::choose_segments(const RegionState& state, const Limits& limits, Spans& spans) {
  const std::vector<int>& cuts = spans.cuts;
  capacity_.clear();
  segment_time_.clear();
  spans_.clear();
  std::vector<size_t> origin;  // span of each segment kept
  spans.weight_before.assign(spans.count + 1, 0.0);
  bool start_between = false, end_between = false;
  for (size_t s = 0; s < spans.count; ++s) {
    start_between = start_between || spans.starts[s] != 0;
    end_between = end_between || spans.ends[s] != 0;
    int fullest = cuts[s];
    double weight = 0;
    for (int t = cuts[s]; t < cuts[s + 1]; ++t) {
      if (state.use[static_cast<size_t>(t)] > state.use[static_cast<size_t>(fullest)]) fullest = t;
      if (limits.penalty > 0 && state.use[static_cast<size_t>(t)] > problem_.limit()) weight += 1;
    }
    spans.weight_before[s + 1] = spans.weight_before[s] + weight;
    const int64_t highest = state.use[static_cast<size_t>(fullest)];
    const int64_t capacity = std::max(problem_.limit() - highest, int64_t{0}) + spans.now[s];
    if (spans.most[s] <= capacity) continue;
    // Where one span's claims are another's and more, and the capacity is no larger, the other
    // goes.
    while (!capacity_.empty() && !end_between && capacity_.back() >= capacity) {
      capacity_.pop_back();
      segment_time_.pop_back();
      origin.pop_back();
      end_between = true;  // what lies before is not known: stop here
      start_between = true;
    }
    if (!capacity_.empty() && !start_between && capacity >= capacity_.back()) continue;
    capacity_.push_back(capacity);
    segment_time_.push_back(fullest);
    origin.push_back(s);
    start_between = end_between = false;
  }
  spans.kept_before.assign(spans.count + 1, 0);
  for (size_t span : origin) {
    ++spans.kept_before[span + 1];
    spans_.push_back({cuts[span], cuts[span + 1]});
  }
  for (size_t s = 0; s < spans.count; ++s) spans.kept_before[s + 1] += spans.kept_before[s];
  price_.assign(capacity_.size(), 0.0);
  for (size_t k = 0; k < capacity_.size(); ++k) {
    for (int t = spans_[k].first; t < spans_[k].second; ++t)
      price_[k] += state.price[static_cast<size_t>(t)];
  }
}

/// What a choice costs with all nodes around the region as they are, and arcs within it.
void RegionSolver::set_costs(const RegionState& state, const Limits& limits, const Spans& spans) {
  for (size_t p = 0; p < count_; ++p) {
    Bucket& bucket = buckets_[p];
    const double* cost = problem_.cost(bucket.node);
    bucket.base.assign(cost, cost + bucket.size);
    bucket.factors.clear();
    for (const FlatProblem::Arc& arc : problem_.arcs(bucket.node)) {
      const int other = place_[static_cast<size_t>(arc.other)];
      if (other < 0) {
        const double* fixed =
            arc.by_other + static_cast<size_t>(state.choice[static_cast<size_t>(arc.other)]) *
                               static_cast<size_t>(bucket.size);
        for (size_t a = 0; a < bucket.base.size(); ++a) bucket.base[a] += fixed[a];
      } else if (other > static_cast<int>(p)) {
        bucket.factors.push_back({arc.by_other, {{other, static_cast<size_t>(bucket.size)}}});
      }
    }
    if (limits.penalty > 0) {
      for (const LocalRange& range : bucket.ranges) {
        const double weight =
            limits.penalty * (spans.weight_before[static_cast<size_t>(range.end)] -
                              spans.weight_before[static_cast<size_t>(range.first)]);
        if (weight == 0) continue;
        for (size_t a = 0; a < bucket.base.size(); ++a)
          bucket.base[a] += weight * static_cast<double>(range.bytes[a]);
      }
    }
    for (LocalRange& range : bucket.ranges) {
      range.first = spans.kept_before[static_cast<size_t>(range.first)];
      range.end = spans.kept_before[static_cast<size_t>(range.end)];
    }
    std::erase_if(bucket.ranges, [](const LocalRange& r) { return r.first >= r.end; });
  }
}

void RegionSolver::place_messages() {
  for (size_t p = 0; p < count_; ++p) {
    const Bucket& bucket = buckets_[p];
    if (bucket.separator.empty()) continue;
    // The message goes to the earliest position of the separator; there its own node varies
    // fastest.
    Factor factor;
    size_t stride = 1;
    for (size_t d = bucket.separator.size(); d-- > 0;) {
      const int position = bucket.separator[d];
      if (d + 1 < bucket.separator.size()) factor.scope.push_back({position, stride});
      stride *= static_cast<size_t>(buckets_[static_cast<size_t>(position)].size);
    }
    buckets_[p].message.resize(stride);
    factor.table = buckets_[p].message.data();
    buckets_[static_cast<size_t>(bucket.separator.back())].factors.push_back(std::move(factor));
  }
}

/// The least of first[a] + all tables' [a], added up in that order. Lanes may overlap: a minimum is
/// the same.
static double least_sum(const double* first, const std::vector<const double*>& tables,
                        size_t size) {
  double least = kInfeasible;
  if (size < kLanes) {
    for (size_t a = 0; a < size; ++a) {
      double sum = first[a];
      for (const double* table : tables) sum += table[a];
      least = sum < least ? sum : least;
    }
    return least;
  }
  CostLanes lanes = CostLanes{} + kInfeasible;
  for (size_t next = 0; next < size; next += kLanes) {
    const size_t a = std::min(next, size - kLanes);
    CostLanes sum = load_costs(first + a);
    for (const double* table : tables) sum += load_costs(table + a);
    lanes = sum < lanes ? sum : lanes;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) least = lanes[lane] < least ? lanes[lane] : least;
  return least;
}

/// Fills all messages for the present prices. Returns the least priced cost.
double RegionSolver::eliminate() {
  double constant = 0;
  for (size_t k = 0; k < capacity_.size(); ++k)
    constant -= price_[k] * static_cast<double>(capacity_[k]);
  std::vector<double> before(capacity_.size() + 1, 0.0);
  for (size_t k = 0; k < capacity_.size(); ++k) before[k + 1] = before[k] + price_[k];
  std::vector<size_t> digit, width;
  std::vector<std::vector<size_t>> strides;
  std::vector<const double*> at;
  for (size_t p = 0; p < count_; ++p) {
    Bucket& bucket = buckets_[p];
    const size_t size = static_cast<size_t>(bucket.size);
    bucket.priced = bucket.base;
    for (const LocalRange& range : bucket.ranges) {
      const double weight =
          before[static_cast<size_t>(range.end)] - before[static_cast<size_t>(range.first)];
      if (weight <= 0) continue;
      for (size_t a = 0; a < size; ++a)
        bucket.priced[a] += weight * static_cast<double>(range.bytes[a]);
    }
    const size_t dims = bucket.separator.size();
    digit.assign(dims, 0);
    width.resize(dims);
    for (size_t d = 0; d < dims; ++d)
      width[d] = static_cast<size_t>(buckets_[static_cast<size_t>(bucket.separator[d])].size);
    const size_t factors = bucket.factors.size();
    if (strides.size() < factors) strides.resize(factors);
    at.resize(factors);
    for (size_t f = 0; f < factors; ++f) {
      at[f] = bucket.factors[f].table;
      strides[f].assign(dims, 0);
      for (const auto& [position, stride] : bucket.factors[f].scope) {
        for (size_t d = 0; d < dims; ++d) {
          if (bucket.separator[d] == position) strides[f][d] = stride;
        }
      }
    }
    if (dims == 0) {
      constant += least_sum(bucket.priced.data(), at, size);
      continue;
    }
    for (double& message : bucket.message) {
      message = least_sum(bucket.priced.data(), at, size);
      for (size_t d = dims; d-- > 0;) {
        const bool turns = ++digit[d] == width[d];
        for (size_t f = 0; f < factors; ++f) {
          if (turns) at[f] -= strides[f][d] * (width[d] - 1);
          if (!turns) at[f] += strides[f][d];
        }
        if (!turns) break;
        digit[d] = 0;
      }
    }
  }
  return constant;
}

/// Priced costs of a position's strategies, those after it assigned: least over those before.
const std::vector<double>& RegionSolver::row(size_t position) {
  const Bucket& bucket = buckets_[position];
  row_ = bucket.priced;
  for (const Factor& factor : bucket.factors) {
    const double* table = factor.table;
    for (const auto& [other, stride] : factor.scope)
      table += stride * static_cast<size_t>(assigned_[static_cast<size_t>(other)]);
    for (size_t a = 0; a < row_.size(); ++a) row_[a] += table[a];
  }
  return row_;
}

double RegionSolver::local_cost() const {
  double cost = 0;
  for (size_t p = 0; p < count_; ++p) {
    const Bucket& bucket = buckets_[p];
    const size_t a = static_cast<size_t>(assigned_[p]);
    cost += bucket.base[a];
    for (const FlatProblem::Arc& arc : problem_.arcs(bucket.node)) {
      const int other = place_[static_cast<size_t>(arc.other)];
      if (other > static_cast<int>(p)) {
        cost += arc.by_other[static_cast<size_t>(assigned_[static_cast<size_t>(other)]) *
                                 static_cast<size_t>(bucket.size) +
                             a];
      }
    }
  }
  return cost;
}

/// Adds to needed_ what a choice needs above the least, or takes it off. Does that fit?
bool RegionSolver::hold(const LocalRange& range, int choice, int sign) {
  const int64_t more = sign * (range.bytes[choice] - range.least);
  bool over = false;
  for (int k = range.first; more != 0 && k < range.end; ++k) {
    needed_[at(k)] += more;
    over |= needed_[at(k)] > capacity_[at(k)];
  }
  return !over;
}

void RegionSolver::branch(size_t level, double bound) {
  if (level == 0) {
    work_ += static_cast<int64_t>(count_) / 2;
    const double cost = local_cost();
    if (cost < best_cost_ - tolerance_) {
      best_cost_ = cost;
      best_ = assigned_;
    }
    return;
  }
  const size_t p = level - 1;
  Bucket& bucket = buckets_[p];
  const std::vector<double>& costs = row(p);
  const double least = *std::min_element(costs.begin(), costs.end());
  bucket.options.clear();
  for (size_t a = 0; a < costs.size(); ++a) {
    const double reached = bound + (costs[a] - least);
    if (reached < best_cost_ - tolerance_) bucket.options.push_back({reached, static_cast<int>(a)});
  }
  std::sort(bucket.options.begin(), bucket.options.end());
  for (const auto& [reached, a] : bucket.options) {
    if (work_ >= budget_ || reached >= best_cost_ - tolerance_) return;
    ++work_;
    bool fits = true;
    size_t done = 0;
    for (; done < bucket.ranges.size() && fits; ++done) fits = hold(bucket.ranges[done], a, 1);
    if (fits) {
      assigned_[p] = a;
      branch(level - 1, reached);
    }
    while (done > 0) hold(bucket.ranges[--done], a, -1);
  }
}

/// Bytes per segment, of each position's ranges.
template <class Of>
std::vector<int64_t> RegionSolver::bytes_of(const Of& of) const {
  BytesOverTime sum(static_cast<int>(capacity_.size()));
  for (size_t p = 0; p < count_; ++p) {
    for (const LocalRange& range : buckets_[p].ranges)
      sum.add(range.first, range.end, of(p, range));
  }
  return sum.values();
}

RegionSolver::Priced RegionSolver::price_memory(const Limits& limits, int64_t& work) {
  Priced out;
  out.price = price_;
  double scale = 1;
  for (int step = 0; step < std::max(1, limits.price_steps); ++step) {
    const double bound = eliminate();
    work += table_entries_ / 100;
    out.is_current = bound > out.bound;
    if (out.is_current) {
      out.bound = bound;
      out.price = price_;
    } else {
      scale /= 2;
    }
    if (out.bound >= best_cost_ - tolerance_) break;
    // The best under these prices, and what it needs.
    for (size_t level = count_; level-- > 0;) {
      const std::vector<double>& costs = row(level);
      assigned_[level] =
          static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
    }
    const std::vector<int64_t> use =
        bytes_of([&](size_t p, const LocalRange& range) { return range.bytes[assigned_[p]]; });
    bool fits = true;
    double norm = 0;
    for (size_t k = 0; k < capacity_.size(); ++k) {
      fits = fits && use[k] <= capacity_[k];
      const double excess = static_cast<double>(use[k] - capacity_[k]);
      if (excess > 0 || price_[k] > 0) norm += excess * excess;
    }
    if (fits) {
      const double cost = local_cost();
      if (cost < best_cost_ - tolerance_) {
        best_cost_ = cost;
        best_ = assigned_;
      }
    }
    if (norm == 0 || step + 1 >= limits.price_steps) break;
    const double length = scale * (best_cost_ - bound) / norm;
    for (size_t k = 0; k < capacity_.size(); ++k)
      price_[k] = std::max(0.0, price_[k] + length * static_cast<double>(use[k] - capacity_[k]));
  }
  return out;
}

/// Of the kept times, where `price` of the segments is another than before.
std::vector<std::pair<int, double>> RegionSolver::new_prices(
    const RegionState& state, const std::vector<double>& price) const {
  std::vector<std::pair<int, double>> out;
  for (size_t k = 0; k < capacity_.size(); ++k) {
    for (int t = spans_[k].first; t < spans_[k].second; ++t) {
      if (t != segment_time_[k] && state.price[static_cast<size_t>(t)] > 0) out.push_back({t, 0.0});
    }
    if (state.price[static_cast<size_t>(segment_time_[k])] != price[k])
      out.push_back({segment_time_[k], price[k]});
  }
  return out;
}

RegionMove RegionSolver::solve(const RegionState& state, const std::vector<int>& wanted,
                               const Limits& limits) {
  RegionMove move;
  order(wanted, limits);
  build(state, limits);
  assigned_.resize(count_);
  for (size_t p = 0; p < count_; ++p)
    assigned_[p] = state.choice[static_cast<size_t>(buckets_[p].node)];
  const double start = local_cost();
  best_cost_ = start;
  best_.clear();
  tolerance_ = 1e-12 * std::max(std::abs(state.cost), std::abs(start));
  const Priced priced = price_memory(limits, move.work);
  move.complete = priced.bound >= best_cost_ - tolerance_;
  if (!move.complete && limits.nodes > 0) {
    price_ = priced.price;
    if (!priced.is_current) eliminate();
    needed_ = bytes_of([](size_t, const LocalRange& range) { return range.least; });
    work_ = 0;
    budget_ = limits.nodes;
    branch(count_, priced.bound);
    move.work += work_;
    move.complete = work_ < budget_;
  }
  if (limits.penalty <= 0) move.price = new_prices(state, priced.price);
  if (!best_.empty()) {
    move.gain = start - best_cost_;
    for (size_t p = 0; p < count_; ++p) {
      const int node = buckets_[p].node;
      if (best_[p] != state.choice[static_cast<size_t>(node)])
        move.changes.push_back({node, best_[p]});
    }
  }
  for (size_t p = 0; p < count_; ++p) place_[static_cast<size_t>(buckets_[p].node)] = -1;
  return move;
}

}  // namespace shardrun
