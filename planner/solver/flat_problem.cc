// Flattening a Problem.
#include "planner/solver/flat_problem.h"

#include <algorithm>

#include "planner/solver/bytes_over_time.h"

namespace shardrun {

FlatProblem::FlatProblem(const Problem& problem)
    : problem_(problem), arcs_(problem.nodes.size()), ranges_(problem.nodes.size()) {
  transposed_.reserve(problem.edges.size());
  for (const Problem::Edge& edge : problem.edges) {
    const size_t rows = problem.nodes[static_cast<size_t>(edge.from)].cost.size();
    const size_t columns = problem.nodes[static_cast<size_t>(edge.to)].cost.size();
    transposed_.push_back(transposed(edge.cost, rows, columns));
    arcs_[static_cast<size_t>(edge.from)].push_back({edge.to, transposed_.back().data()});
    arcs_[static_cast<size_t>(edge.to)].push_back({edge.from, edge.cost.data()});
  }
  if (!problem.limited()) return;
  int end = 0;
  const auto each = [&](auto&& visit) {
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      for (const Problem::Claim& claim : problem.nodes[i].claims) {
        for (const Problem::Interval& live : claim.live) {
          if (live.first <= live.last) visit(i, claim, live);
        }
      }
    }
  };
  each([&](size_t, const Problem::Claim&, const Problem::Interval& live) {
    end = std::max(end, live.last + 1);
  });
  std::vector<char> starts(static_cast<size_t>(end), 0), ends(static_cast<size_t>(end), 0);
  each([&](size_t, const Problem::Claim&, const Problem::Interval& live) {
    starts[static_cast<size_t>(live.first)] = 1;
    ends[static_cast<size_t>(live.last)] = 1;
  });
  std::vector<int> kept_before(static_cast<size_t>(end) + 1, 0);
  bool started = false;
  for (int t = 0; t < end; ++t) {
    started = started || starts[static_cast<size_t>(t)] != 0;
    if (started && ends[static_cast<size_t>(t)] != 0) {
      ++times_;
      started = false;
    }
    kept_before[static_cast<size_t>(t) + 1] = times_;
  }
  each([&](size_t i, const Problem::Claim& claim, const Problem::Interval& live) {
    const int first = kept_before[static_cast<size_t>(live.first)];
    const int last = kept_before[static_cast<size_t>(live.last) + 1];
    if (first < last) ranges_[i].push_back({first, last, claim.bytes.data()});
  });
}

std::vector<int64_t> FlatProblem::usage(const Solution& solution) const {
  BytesOverTime use(times_);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    for (const Range& range : ranges_[i]) use.add(range.first, range.end, range.bytes[solution[i]]);
  }
  return use.values();
}

double FlatProblem::overflow(const std::vector<int64_t>& use) const {
  double sum = 0;
  for (int64_t bytes : use) sum += static_cast<double>(std::max<int64_t>(0, bytes - limit()));
  return sum;
}

}  // namespace shardrun
