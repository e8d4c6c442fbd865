// Copying the part of a Problem that is kept.
#include "planner/contest/problem_window.h"

#include <algorithm>

#include "base/error.h"

namespace shardrun {

ProblemWindow::ProblemWindow(const Problem& whole, const std::vector<std::vector<bool>>& keep) {
  problem_.memory_limit = whole.memory_limit;
  for (size_t i = 0; i < whole.nodes.size(); ++i) {
    const Problem::Node& from = whole.nodes[i];
    std::vector<int>& kept = kept_.emplace_back();
    for (size_t a = 0; a < from.cost.size(); ++a) {
      if (keep[i][a]) kept.push_back(static_cast<int>(a));
    }
    SR_REQUIRE(!kept.empty(), internal, "node '", from.name, "' keeps no strategy");
    Problem::Node& to = problem_.nodes.emplace_back();
    to.name = from.name;
    for (int a : kept) to.cost.push_back(from.cost[static_cast<size_t>(a)]);
    for (const Problem::Claim& claim : from.claims) {
      Problem::Claim& less = to.claims.emplace_back();
      less.live = claim.live;
      for (int a : kept) less.bytes.push_back(claim.bytes[static_cast<size_t>(a)]);
    }
  }
  for (const Problem::Edge& edge : whole.edges) {
    const size_t columns = whole.nodes[static_cast<size_t>(edge.to)].cost.size();
    Problem::Edge& less = problem_.edges.emplace_back();
    less.from = edge.from;
    less.to = edge.to;
    for (int a : kept_[static_cast<size_t>(edge.from)]) {
      const double* row = edge.cost.data() + static_cast<size_t>(a) * columns;
      for (int b : kept_[static_cast<size_t>(edge.to)]) less.cost.push_back(row[b]);
    }
  }
}

Solution ProblemWindow::to_whole(const Solution& solution) const {
  Solution result;
  for (size_t i = 0; i < solution.size(); ++i)
    result.push_back(kept_[i][static_cast<size_t>(solution[i])]);
  return result;
}

Solution ProblemWindow::from_whole(const Solution& solution) const {
  Solution result;
  for (size_t i = 0; i < solution.size(); ++i) {
    const auto found = std::lower_bound(kept_[i].begin(), kept_[i].end(), solution[i]);
    SR_REQUIRE(found != kept_[i].end() && *found == solution[i], internal, "node '",
               problem_.nodes[i].name, "' does not keep strategy ", solution[i]);
    result.push_back(static_cast<int>(found - kept_[i].begin()));
  }
  return result;
}

}  // namespace shardrun
