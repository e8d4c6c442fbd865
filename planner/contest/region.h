// The exact best choices of a few nodes while all others stay, under the memory that they leave.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "planner/solver/flat_problem.h"

namespace shardrun {

/// What a search holds: one choice per node, and what follows from the choices.
struct RegionState {
  Solution choice;
  std::vector<int64_t> use;   // bytes at each kept time
  std::vector<double> price;  // of a byte at each kept time: a guess, any value >= 0 is right
  double cost = 0;
};

/// Changes that lower the cost.
struct RegionMove {
  std::vector<std::pair<int, int>> changes;   // node, new choice
  double gain = 0;                            // old cost - new cost (repair: of cost + penalty)
  std::vector<std::pair<int, double>> price;  // kept time, new price
  int64_t work = 0;       // nodes of the search tree, and hundreds of table entries
  bool complete = false;  // nothing better with the others as they are
};

/// Within the region memory is a Lagrangian: bucket elimination (Dechter 1999) gives the least
/// priced cost of every partial assignment in reverse elimination order, and a depth-first search
/// along that order prunes with it, and with the bytes that are certainly needed. With no more
/// memory than the prices ask for, the first descent is optimal. Nodes that would make a table too
/// large keep their choice. Deterministic. Not thread-safe: one per thread.
class RegionSolver {
 public:
  static constexpr int kMostNodes = 256;
  explicit RegionSolver(const FlatProblem& problem);

  struct Limits {
    double table = 2e4;    // entries of a bucket, its own node included
    double tables = 3e5;   // of all buckets
    int64_t nodes = 4000;  // of the search tree
    int price_steps = 4;
    double penalty = 0;  // > 0: per byte at each time that is above the limit now (repair)
  };
  /// `wanted`: at most kMostNodes different nodes. The move leaves no time above the limit that is
  /// not above it now, and none higher that is.
  RegionMove solve(const RegionState& state, const std::vector<int>& wanted, const Limits& limits);

 private:
  using Bits = std::bitset<kMostNodes>;
  struct Factor {
    const double* table = nullptr;
    std::vector<std::pair<int, size_t>> scope;  // position, stride; without the bucket's own node
  };
  struct LocalRange {
    int first = 0, end = 0;  // segments
    const int64_t* bytes = nullptr;
    int64_t least = 0;
  };
  struct Bucket {
    int node = 0, size = 0;
    std::vector<int> separator;  // later positions, descending
    std::vector<double> base, priced;
    std::vector<LocalRange> ranges;
    std::vector<Factor> factors;
    std::vector<double> message;
    std::vector<std::pair<double, int>> options;
  };
  /// Runs of times between which no claim of the region starts or ends. Per span, but for the cuts.
  struct Spans {
    size_t count = 0;
    std::vector<int> cuts;              // times: span s goes from cuts[s] to cuts[s + 1]
    std::vector<int64_t> now, most;     // the region's bytes as chosen, and at most
    std::vector<char> starts, ends;     // does a claim start with it, or end before it?
    std::vector<double> weight_before;  // repair: times above the limit in all spans before
    std::vector<int> kept_before;       // segments before
  };
  /// The best bound, and its prices per segment.
  struct Priced {
    double bound = -kInfeasible;
    std::vector<double> price;
    bool is_current = false;  // messages are those of `price`
  };
  void order(const std::vector<int>& wanted, const Limits& limits);
  void build(const RegionState& state, const Limits& limits);
  Spans spans_of(const RegionState& state);
  void choose_segments(const RegionState& state, const Limits& limits, Spans& spans);
  void set_costs(const RegionState& state, const Limits& limits, const Spans& spans);
  void place_messages();
  double eliminate();
  const std::vector<double>& row(size_t position);
  bool hold(const LocalRange& range, int choice, int sign);
  void branch(size_t level, double bound);
  double local_cost() const;
  /// Moves the prices of segments by subgradients, and tries what is best under each of them.
  Priced price_memory(const Limits& limits, int64_t& work);
  std::vector<std::pair<int, double>> new_prices(const RegionState& state,
                                                 const std::vector<double>& price) const;
  template <class Of>
  std::vector<int64_t> bytes_of(const Of& of) const;

  const FlatProblem& problem_;
  std::vector<int> place_;  // position of a node in the region, or -1
  std::vector<Bucket> buckets_;
  size_t count_ = 0;
  std::vector<int64_t> capacity_;           // per segment: bytes for the region
  std::vector<int> segment_time_;           // a time where the others need most
  std::vector<double> price_;               // per segment
  std::vector<std::pair<int, int>> spans_;  // of times, per segment
  std::vector<int64_t> needed_;             // during the search
  std::vector<int> assigned_, best_;        // by position
  std::vector<double> row_;
  double best_cost_ = 0, tolerance_ = 0;
  int64_t work_ = 0, budget_ = 0, table_entries_ = 0;
};

}  // namespace shardrun
