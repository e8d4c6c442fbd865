// BytesOverTime: what is held at each time, added up by the times at which it begins and ends.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/at.h"
#include "planner/solver/problem.h"

namespace shardrun {

class BytesOverTime {
 public:
  /// Of at least so many times; more are added as they are needed.
  explicit BytesOverTime(int times = 0) : change_(at(times) + 1, 0) {}

  /// At the times [first, end): nothing if that is empty.
  void add(int first, int end, int64_t bytes) {
    if (first >= end) return;
    if (change_.size() <= at(end)) change_.resize(at(end) + 1, 0);
    change_[at(first)] += bytes;
    change_[at(end)] -= bytes;
  }
  std::vector<int64_t> values() const {
    std::vector<int64_t> out(change_.size() - 1);
    std::partial_sum(change_.begin(), change_.end() - 1, out.begin());
    return out;
  }

 private:
  std::vector<int64_t> change_;
};

/// Of the nodes of a Problem or a FactoredProblem. `bytes_of`: of a claim of a node with a number.
template <class Nodes, class BytesOf>
std::vector<int64_t> claimed_over_time(const Nodes& nodes, const BytesOf& bytes_of) {
  BytesOverTime sum;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Problem::Claim& claim : nodes[i].claims) {
      const int64_t bytes = bytes_of(i, claim);
      for (const Problem::Interval& live : claim.live) sum.add(live.first, live.last + 1, bytes);
    }
  }
  return sum.values();
}

/// Under the choices of a solution.
template <class Nodes>
std::vector<int64_t> claimed_over_time(const Nodes& nodes, const Solution& solution) {
  return claimed_over_time(
      nodes, [&](size_t i, const Problem::Claim& claim) { return claim.bytes[at(solution[i])]; });
}

/// With the fewest bytes that each claim alone can have by an allowed choice.
template <class Nodes>
std::vector<int64_t> least_over_time(const Nodes& nodes) {
  return claimed_over_time(nodes, [&](size_t i, const Problem::Claim& claim) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t a = 0; a < claim.bytes.size(); ++a) {
      if (nodes[i].cost[a] != kInfeasible) least = std::min(least, claim.bytes[a]);
    }
    return least != std::numeric_limits<int64_t>::max() ? least : 0;  // 0: no choice at all
  });
}

/// The most, and the first time of it.
inline PeakBytes peak_of(const std::vector<int64_t>& bytes) {
  if (bytes.empty()) return {};
  const auto most = std::max_element(bytes.begin(), bytes.end());
  return {*most, static_cast<int>(most - bytes.begin())};
}

}  // namespace shardrun
