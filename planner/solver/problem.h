// Problem: the planner's search stripped of tensors, and its evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace shardrun {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();
/// Relative: a sum of costs in another order differs by less, so a smaller gain is none.
inline constexpr double kRounding = 1e-9;

/// Choose one strategy per node so that the summed costs are least and, at every time, the bytes of
/// what is alive stay within the limit.
struct Problem {
  /// Time steps [first, last], inclusive; never alive if first > last.
  struct Interval {
    int first = 0, last = -1;
    friend bool operator==(const Interval&, const Interval&) = default;
  };
  /// Memory whose size follows from the node's strategy: bytes[strategy], held once during each of
  /// the intervals. A node that stands for four equal layers has one claim per result with four
  /// intervals; intervals that overlap count twice.
  struct Claim {
    std::vector<int64_t> bytes;
    std::vector<Interval> live;
  };
  struct Node {
    std::string name;
    std::vector<double> cost;  // per strategy; kInfeasible forbids it
    std::vector<Claim> claims;
  };
  struct Edge {
    int from = 0, to = 0;      // nodes; from == to is not allowed, parallel edges add up
    std::vector<double> cost;  // row-major [from's strategies][to's strategies]
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  int64_t memory_limit = std::numeric_limits<int64_t>::max();

  bool limited() const { return memory_limit != std::numeric_limits<int64_t>::max(); }
};

/// One strategy index per node.
using Solution = std::vector<int>;

struct Evaluation {
  double cost = 0;      // kInfeasible if a forbidden choice was made or memory does not fit
  double raw_cost = 0;  // the same without regard to memory
  int64_t peak_bytes = 0;
  int peak_time = -1;  // -1: nothing is ever alive
};

/// The best of the solutions that a search has seen, and of all that are allowed, whether they fit
/// or not, the one that needs the least memory.
struct Incumbent {
  std::optional<Solution> solution;  // nullopt: none that fits was seen
  double cost = kInfeasible;
  std::optional<Solution> tightest;  // nullopt as well where memory is not limited
  int64_t least_peak = std::numeric_limits<int64_t>::max();  // of that one, in bytes

  /// `raw_cost`: kInfeasible if a forbidden choice was made. `peak`: -1 where memory is not
  /// limited. True if it is the best now.
  bool offer(const Solution& seen, double raw_cost, int64_t peak, bool fits);
};

/// An edge's costs seen from its other node: those of `rows` x `columns`, columns first.
std::vector<double> transposed(const std::vector<double>& cost, size_t rows, size_t columns);

/// The summed costs of the choices alone, memory aside. Indices must be in range.
double raw_cost(const Problem& problem, const Solution& solution);

/// Pure. Throws internal if the solution has the wrong size or an index out of range.
Evaluation evaluate(const Problem& problem, const Solution& solution);

struct PeakBytes {
  int64_t bytes = 0;
  int time = -1;  // -1: nothing is ever alive
};
/// Every node's least bytes, added up at the time when that is most: no solution needs less there.
PeakBytes least_bytes(const Problem& problem);

/// Per node the strategies that are kept, ascending, at least one.
using Kept = std::vector<std::vector<int>>;
/// The problem of the kept strategies: choice k of node i is choice kept[i][k] of `problem`.
Problem restricted(const Problem& problem, const Kept& kept);
std::vector<Problem::Claim> restricted(const std::vector<Problem::Claim>& claims,
                                       const std::vector<int>& kept);
/// From choices in the restricted problem to those in the whole one, and back: nullopt if one of
/// them was not kept.
Solution expanded(const Solution& solution, const Kept& kept);
std::optional<Solution> choices_in(const Solution& solution, const Kept& kept);

/// Throws internal, naming node or edge, if sizes do not match, an index is out of range, a cost is
/// NaN or minus infinity, bytes are negative or an interval starts before 0.
void check_problem(const Problem& problem);

}  // namespace shardrun
