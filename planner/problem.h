// Problem: the planner's search stripped of tensors, and its evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace shardrun {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

/// Choose one strategy per node so that the summed costs are least and, at every time, the bytes of
/// the live nodes stay within the limit.
struct Problem {
  struct Node {
    std::string name;
    std::vector<double> cost;     // per strategy; kInfeasible forbids it
    std::vector<int64_t> bytes;   // per strategy, held during [first, last]
    int first = 0, last = -1;     // live interval in time steps, inclusive; first > last: never live
  };
  struct Edge {
    int from = 0, to = 0;             // nodes; from == to is not allowed
    std::vector<double> cost;         // row-major [from's strategies][to's strategies]
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  int64_t memory_limit = std::numeric_limits<int64_t>::max();
};

/// One strategy index per node.
using Solution = std::vector<int>;

struct Evaluation {
  double cost = 0;          // kInfeasible if a forbidden choice was made or memory does not fit
  double raw_cost = 0;      // the same without regard to memory
  int64_t peak_bytes = 0;
  int peak_time = -1;
};

/// Pure. Throws internal if the solution has the wrong size or an index out of range.
Evaluation evaluate(const Problem& problem, const Solution& solution);

}  // namespace shardrun
