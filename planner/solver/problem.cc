// Evaluation and validation of a Problem.
#include "planner/solver/problem.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardrun {

double raw_cost(const Problem& problem, const Solution& solution) {
  double cost = 0;
  for (size_t i = 0; i < solution.size(); ++i)
    cost += problem.nodes[i].cost[static_cast<size_t>(solution[i])];
  for (const Problem::Edge& edge : problem.edges) {
    const size_t columns = problem.nodes[static_cast<size_t>(edge.to)].cost.size();
    cost += edge.cost[static_cast<size_t>(solution[static_cast<size_t>(edge.from)]) * columns +
                      static_cast<size_t>(solution[static_cast<size_t>(edge.to)])];
  }
  return cost;
}

Evaluation evaluate(const Problem& problem, const Solution& solution) {
  SR_REQUIRE(solution.size() == problem.nodes.size(), internal, "solution has ", solution.size(),
             " choices, the problem has ", problem.nodes.size(), " nodes");
  Evaluation result;
  int end = 0;
  for (const Problem::Node& node : problem.nodes) {
    for (const Problem::Claim& claim : node.claims) {
      for (const Problem::Interval& live : claim.live) end = std::max(end, live.last + 1);
    }
  }
  std::vector<int64_t> change(static_cast<size_t>(end) + 1, 0);
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const Problem::Node& node = problem.nodes[i];
    const int choice = solution[i];
    SR_REQUIRE(choice >= 0 && static_cast<size_t>(choice) < node.cost.size(), internal, "node '",
               node.name, "' has ", node.cost.size(), " strategies, the solution picks ", choice);
    for (const Problem::Claim& claim : node.claims) {
      const int64_t bytes = claim.bytes[static_cast<size_t>(choice)];
      for (const Problem::Interval& live : claim.live) {
        if (live.first > live.last) continue;
        change[static_cast<size_t>(live.first)] += bytes;
        change[static_cast<size_t>(live.last) + 1] -= bytes;
      }
    }
  }
  result.raw_cost = raw_cost(problem, solution);
  int64_t bytes = 0;
  for (int t = 0; t < end; ++t) {
    bytes += change[static_cast<size_t>(t)];
    if (result.peak_time < 0 || bytes > result.peak_bytes) {
      result.peak_bytes = bytes;
      result.peak_time = t;
    }
  }
  result.cost = result.peak_bytes > problem.memory_limit ? kInfeasible : result.raw_cost;
  return result;
}

LeastBytes least_bytes(const Problem& problem) {
  Problem smallest;
  for (const Problem::Node& node : problem.nodes) {
    Problem::Node& one = smallest.nodes.emplace_back();
    one.cost = {0.0};
    for (const Problem::Claim& claim : node.claims) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (size_t a = 0; a < claim.bytes.size(); ++a) {
        if (node.cost[a] != kInfeasible) least = std::min(least, claim.bytes[a]);
      }
      if (least != std::numeric_limits<int64_t>::max()) one.claims.push_back({{least}, claim.live});
    }
  }
  const Evaluation found = evaluate(smallest, Solution(smallest.nodes.size(), 0));
  return {found.peak_bytes, found.peak_time};
}

std::vector<Problem::Claim> restricted(const std::vector<Problem::Claim>& claims,
                                       const std::vector<int>& kept) {
  std::vector<Problem::Claim> out;
  for (const Problem::Claim& claim : claims) {
    Problem::Claim& less = out.emplace_back();
    less.live = claim.live;
    for (int a : kept) less.bytes.push_back(claim.bytes[static_cast<size_t>(a)]);
  }
  return out;
}

Problem restricted(const Problem& problem, const Kept& kept) {
  Problem out;
  out.memory_limit = problem.memory_limit;
  for (size_t i = 0; i < kept.size(); ++i) {
    const Problem::Node& node = problem.nodes[i];
    SR_REQUIRE(!kept[i].empty(), internal, "node '", node.name, "' keeps no strategy");
    Problem::Node& less = out.nodes.emplace_back();
    less.name = node.name;
    for (int a : kept[i]) less.cost.push_back(node.cost[static_cast<size_t>(a)]);
    less.claims = restricted(node.claims, kept[i]);
  }
  for (const Problem::Edge& edge : problem.edges) {
    const size_t columns = problem.nodes[static_cast<size_t>(edge.to)].cost.size();
    Problem::Edge& less = out.edges.emplace_back();
    less.from = edge.from;
    less.to = edge.to;
    for (int a : kept[static_cast<size_t>(edge.from)]) {
      const double* row = edge.cost.data() + static_cast<size_t>(a) * columns;
      for (int b : kept[static_cast<size_t>(edge.to)]) less.cost.push_back(row[b]);
    }
  }
  return out;
}

Solution expanded(const Solution& solution, const Kept& kept) {
  Solution out;
  for (size_t i = 0; i < solution.size(); ++i)
    out.push_back(kept[i][static_cast<size_t>(solution[i])]);
  return out;
}

std::optional<Solution> choices_in(const Solution& solution, const Kept& kept) {
  Solution out;
  for (size_t i = 0; i < solution.size(); ++i) {
    const auto found = std::lower_bound(kept[i].begin(), kept[i].end(), solution[i]);
    if (found == kept[i].end() || *found != solution[i]) return std::nullopt;
    out.push_back(static_cast<int>(found - kept[i].begin()));
  }
  return out;
}

void check_problem(const Problem& problem) {
  for (const Problem::Node& node : problem.nodes) {
    for (double cost : node.cost) {
      SR_REQUIRE(!std::isnan(cost) && cost != -kInfeasible, internal, "node '", node.name,
                 "' has a cost of ", cost);
    }
    for (const Problem::Claim& claim : node.claims) {
      SR_REQUIRE(claim.bytes.size() == node.cost.size(), internal, "node '", node.name, "' has ",
                 node.cost.size(), " strategies, a claim on memory has ", claim.bytes.size());
      for (int64_t bytes : claim.bytes) {
        SR_REQUIRE(bytes >= 0, internal, "node '", node.name, "' holds ", bytes, " bytes");
      }
      for (const Problem::Interval& live : claim.live) {
        SR_REQUIRE(live.first > live.last || live.first >= 0, internal, "node '", node.name,
                   "' lives from time ", live.first);
      }
    }
  }
  const int count = static_cast<int>(problem.nodes.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const Problem::Edge& edge = problem.edges[e];
    SR_REQUIRE(edge.from >= 0 && edge.from < count && edge.to >= 0 && edge.to < count &&
                   edge.from != edge.to,
               internal, "edge ", e, " joins nodes ", edge.from, " and ", edge.to, " of ", count);
    const size_t wanted = problem.nodes[static_cast<size_t>(edge.from)].cost.size() *
                          problem.nodes[static_cast<size_t>(edge.to)].cost.size();
    SR_REQUIRE(edge.cost.size() == wanted, internal, "edge ", e, " has ", edge.cost.size(),
               " costs, wanted ", wanted);
    for (double cost : edge.cost) {
      SR_REQUIRE(!std::isnan(cost) && cost != -kInfeasible, internal, "edge ", e, " has a cost of ",
                 cost);
    }
  }
}

}  // namespace shardrun
