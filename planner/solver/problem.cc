// Evaluation and validation of a Problem.
#include "planner/solver/problem.h"

#include <algorithm>
#include <cmath>

#include "base/at.h"
#include "base/error.h"
#include "planner/solver/bytes_over_time.h"

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
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const Problem::Node& node = problem.nodes[i];
    SR_REQUIRE(solution[i] >= 0 && at(solution[i]) < node.cost.size(), internal, "node '",
               node.name, "' has ", node.cost.size(), " strategies, the solution picks ",
               solution[i]);
  }
  const PeakBytes peak = peak_of(claimed_over_time(problem.nodes, solution));
  Evaluation result;
  result.raw_cost = raw_cost(problem, solution);
  result.peak_bytes = peak.bytes;
  result.peak_time = peak.time;
  result.cost = peak.bytes > problem.memory_limit ? kInfeasible : result.raw_cost;
  return result;
}

std::vector<double> transposed(const std::vector<double>& cost, size_t rows, size_t columns) {
  std::vector<double> out(cost.size());
  for (size_t x = 0; x < rows; ++x) {
    for (size_t y = 0; y < columns; ++y) out[y * rows + x] = cost[x * columns + y];
  }
  return out;
}

bool Incumbent::offer(const Solution& seen, double raw_cost, int64_t peak, bool fits) {
  if (raw_cost < kInfeasible && peak >= 0 && peak < least_peak) {
    least_peak = peak;
    tightest = seen;
  }
  if (!fits || !(raw_cost < cost)) return false;
  cost = raw_cost;
  solution = seen;
  return true;
}

PeakBytes least_bytes(const Problem& problem) { return peak_of(least_over_time(problem.nodes)); }

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
