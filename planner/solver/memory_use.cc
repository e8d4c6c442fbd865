// Counting bytes, and moving their prices.
#include "planner/solver/memory_use.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "planner/solver/deadline.h"

namespace shardrun {

MemoryUse::MemoryUse(const FlatProblem& flat)
    : flat_(flat),
      claims_(static_cast<size_t>(flat.size())),
      held_(static_cast<size_t>(flat.size())) {
  for (int i = 0; i < flat.size(); ++i) {
    const std::vector<FlatProblem::Range>& ranges = flat.ranges(i);
    for (size_t r = 0; r < ranges.size();) {  // a claim's ranges follow each other
      Claim claim{ranges[r].bytes, {}};
      std::map<int, int> counts;
      for (; r < ranges.size() && ranges[r].bytes == claim.bytes; ++r) {
        for (int t = ranges[r].first; t < ranges[r].end; ++t) ++counts[t];
      }
      claim.counts.assign(counts.begin(), counts.end());
      for (const auto& [time, count] : claim.counts) held_[static_cast<size_t>(i)].push_back(time);
      claims_[static_cast<size_t>(i)].push_back(std::move(claim));
    }
    std::vector<int>& held = held_[static_cast<size_t>(i)];
    std::sort(held.begin(), held.end());
    held.erase(std::unique(held.begin(), held.end()), held.end());
  }
  use_.assign(static_cast<size_t>(flat.times()), 0);
  moved_ = use_;
}

void MemoryUse::apply(int node, int strategy, int sign) {
  for (const Claim& claim : claims_[static_cast<size_t>(node)]) {
    const int64_t bytes = sign * claim.bytes[strategy];
    if (bytes == 0) continue;
    for (const auto& [time, count] : claim.counts) use_[static_cast<size_t>(time)] += bytes * count;
  }
}

bool MemoryUse::fits_after(int node, int from, int to) const {
  bool grows = false;
  for (const Claim& claim : claims_[static_cast<size_t>(node)])
    grows = grows || claim.bytes[to] > claim.bytes[from];
  if (!grows) return true;
  count_work(2 * static_cast<double>(use_.size()));
  moved(node, from, to);
  for (int time : held_[static_cast<size_t>(node)]) {
    const int64_t by = moved_[static_cast<size_t>(time)];
    if (by > 0 && use_[static_cast<size_t>(time)] + by > limit()) return false;
  }
  return true;
}

void MemoryUse::moved(int node, int from, int to) const {
  for (int time : held_[static_cast<size_t>(node)]) moved_[static_cast<size_t>(time)] = 0;
  for (const Claim& claim : claims_[static_cast<size_t>(node)]) {
    const int64_t bytes = claim.bytes[to] - claim.bytes[from];
    if (bytes == 0) continue;
    for (const auto& [time, count] : claim.counts)
      moved_[static_cast<size_t>(time)] += bytes * count;
  }
}

double MemoryUse::overflow_after(double overflow, int node, int from, int to) const {
  count_work(2 * static_cast<double>(use_.size()));
  moved(node, from, to);
  for (int time : held_[static_cast<size_t>(node)]) {
    const int64_t now = use_[static_cast<size_t>(time)] - limit(),
                  then = now + moved_[static_cast<size_t>(time)];
    overflow += static_cast<double>(std::max<int64_t>(0, then) - std::max<int64_t>(0, now));
  }
  return overflow;
}

int64_t MemoryUse::peak() const {
  return use_.empty() ? 0 : *std::max_element(use_.begin(), use_.end());
}

double MemoryUse::weight(const Claim& claim, const std::vector<double>& price) {
  double sum = 0;
  for (const auto& [time, count] : claim.counts) sum += price[static_cast<size_t>(time)] * count;
  return sum;
}

std::vector<double> MemoryUse::priced(int node, const std::vector<double>& price) const {
  std::vector<double> result(static_cast<size_t>(flat_.strategies(node)), 0.0);
  for (const Claim& claim : claims_[static_cast<size_t>(node)]) {
    const double its = weight(claim, price);
    if (its == 0) continue;
    for (size_t a = 0; a < result.size(); ++a)
      result[a] += its * static_cast<double>(claim.bytes[a]);
  }
  return result;
}

void MemoryUse::add_priced(int node, const std::vector<double>& price,
                           const std::vector<int>& strategies, std::vector<double>& cost) const {
  for (const Claim& claim : claims_[static_cast<size_t>(node)]) {
    const double its = weight(claim, price);
    if (its == 0) continue;
    for (size_t k = 0; k < strategies.size(); ++k)
      cost[k] += its * static_cast<double>(claim.bytes[strategies[k]]);
  }
}

void MemoryPrices::settle(int& stalled) {
  if (stalled < kMemoryPrices.patience) return;
  step_ /= 2;
  stalled = 0;
}

bool MemoryPrices::move(const MemoryUse& memory, double value, double cost) {
  const auto excess = [&](size_t t) {
    return static_cast<double>(memory.use()[t]) - static_cast<double>(memory.limit());
  };
  double norm = 0;
  for (size_t t = 0; t < price_.size(); ++t) {
    if (excess(t) > 0 || price_[t] > 0) norm += excess(t) * excess(t);
  }
  if (norm == 0) return false;
  const double goal = cost < kInfeasible ? cost : value + kMemoryPrices.hope * std::abs(value);
  const double length =
      step_ * std::max(goal - value, kMemoryPrices.least_rise * std::abs(goal)) / norm;
  priced_limit_ = 0;
  for (size_t t = 0; t < price_.size(); ++t) {
    const double next = std::max(0.0, price_[t] + length * excess(t));
    change_[t] = next - price_[t];
    price_[t] = next;
    priced_limit_ += next * static_cast<double>(memory.limit());
  }
  return true;
}

}  // namespace shardrun
