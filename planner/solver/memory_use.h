// MemoryUse and MemoryPrices: bytes in use over time as choices change, and prices of them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/solver/flat_problem.h"

namespace shardrun {

/// Bytes in use at the kept times of a FlatProblem, which must outlive this.
class MemoryUse {
 public:
  explicit MemoryUse(const FlatProblem& flat);

  void reset(const Solution& solution) { use_ = flat_.usage(solution); }
  void change(int node, int from, int to) { apply(node, from, -1), apply(node, to, 1); }
  bool limited() const { return flat_.problem().limited(); }
  bool fits_after(int node, int from, int to) const;
  double overflow() const { return flat_.overflow(use_); }
  /// The same from what it is now, if one choice changes.
  double overflow_after(double overflow, int node, int from, int to) const;
  int64_t peak() const;
  const std::vector<int64_t>& use() const { return use_; }
  size_t times() const { return use_.size(); }
  int64_t limit() const { return flat_.limit(); }
  /// Per strategy: sum over times of price x bytes.
  std::vector<double> priced(int node, const std::vector<double>& price) const;
  /// Adds the same of some strategies to their costs.
  void add_priced(int node, const std::vector<double>& price, const std::vector<int>& strategies,
                  std::vector<double>& cost) const;

 private:
  /// How often each kept time sees the bytes: intervals of one claim may overlap.
  struct Claim {
    const int64_t* bytes = nullptr;           // by strategy
    std::vector<std::pair<int, int>> counts;  // time, count
  };
  /// Sets moved_, at the times of the node's claims, to the bytes that such a change adds.
  void moved(int node, int from, int to) const;
  static double weight(const Claim& claim, const std::vector<double>& price);
  void apply(int node, int strategy, int sign);

  const FlatProblem& flat_;
  std::vector<std::vector<Claim>> claims_;  // by node
  std::vector<std::vector<int>> held_;      // by node, the times of all its claims
  std::vector<int64_t> use_;
  mutable std::vector<int64_t> moved_;
};

/// How MemoryPrices move.
struct MemoryPricesSettings {
  int patience = 8;          // sweeps without a gain of the bound before steps are halved
  double least_step = 1e-3;  // of Polyak's length: then prices have settled
  double hope = 0.05;        // relative to the bound: the goal above it while no solution is known
  double least_rise = 1e-6;  // relative to the goal, where the bound has reached it
};
inline constexpr MemoryPricesSettings kMemoryPrices;

/// Prices of a byte at each kept time, for the Lagrangian of the memory rows, moved by subgradient
/// steps of Polyak's length.
class MemoryPrices {
 public:
  explicit MemoryPrices(size_t times) : price_(times, 0.0), change_(times, 0.0) {}

  /// Halves the steps where the bound has `stalled` for so many sweeps, which starts anew.
  void settle(int& stalled);
  /// One step from a solution's use of memory, towards the cost of the best known solution
  /// (infinite: none) from a bound's `value`. False if no price would change.
  bool move(const MemoryUse& memory, double value, double cost);

  const std::vector<double>& price() const { return price_; }
  const std::vector<double>& change() const { return change_; }  // by the last step
  double priced_limit() const { return priced_limit_; }          // sum of price x limit
  bool settled() const { return step_ < kMemoryPrices.least_step; }

 private:
  std::vector<double> price_, change_;
  double priced_limit_ = 0, step_ = 1;
};

}  // namespace shardrun
