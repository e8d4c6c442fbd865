// CoreSearch: large neighbourhood search in a core whose strategies the prices of memory leave in
// question.
#pragma once

#include <limits>
#include <vector>

#include "planner/contest/price_search.h"
#include "planner/contest/region_search.h"
#include "planner/solver/bound.h"
#include "planner/solver/deadline.h"
#include "planner/solver/flat_problem.h"
#include "planner/solver/solver.h"

namespace shardrun {

/// With good prices nine of ten nodes of a good solution have the strategy of slack 0, and nearly
/// all of the rest one of small slack (in the IOPDDL instances: 99 % within the lowest third). So:
/// price memory; decode, repair and improve a solution; then again and again keep the strategies up
/// to some slack and those of the best solutions so far, reduce that neighbourhood, price it anew
/// and search it by regions, from what its own prices decode and from the best solution. What
/// several good solutions do alike is merged away, so a neighbourhood also recombines them.
/// Deterministic if the node budget of the options ends it before the deadline does.
class CoreSearch {
 public:
  struct Found {
    double cost = kInfeasible;
    Solution choice;  // of the core
  };

  /// core: every node needs a strategy, costs must be finite.
  CoreSearch(Problem core, const SolveOptions& options, const Deadline& end);
  CoreSearch(const CoreSearch&) = delete;

  /// Prices memory; lower_bound holds from now on.
  void price(const Deadline& until);
  /// First solutions, from the prices and from `known` (may be null). Tries at most so often, or
  /// until the time or the node budget is used up. False if none fits.
  bool start(const Solution* known, int most = std::numeric_limits<int>::max());
  /// One round of neighbourhoods, some in every thread. True if the best solution became better.
  bool round();
  /// Whether the time or the node budget leave nothing for another round.
  bool exhausted() const;

  double lower_bound() const { return core_.prices.lower_bound(); }
  const std::vector<Found>& elites() const { return elites_; }  // best first
  int64_t work() const { return work_; }
  /// Where start found none: the one with the fewest bytes above the limit, summed over time. Empty
  /// if there is none.
  const Solution& tightest() const { return tightest_.choice; }

  /// What no solution cheaper than `cost` has: strategies per node, and pairs as in edges' costs.
  struct Excluded {
    std::vector<std::vector<bool>> strategies, pairs;
  };
  Excluded excluded(double cost);
  /// Indices of the kept times whose memory has the highest prices, the highest first.
  std::vector<size_t> scarcest_times(size_t most) const;

 private:
  struct Core {
    Problem problem;
    FlatProblem flat;
    Bound bound;
    PriceSearch prices;
    explicit Core(Problem p)
        : problem(std::move(p)), flat(problem), bound(problem), prices(flat, bound) {}
    Core(const Core&) = delete;
  };
  struct Worker {
    std::vector<Found> elites;
    uint64_t seed = 0;
    int64_t work = 0;
    double setup = 0;  // seconds that the longest preparation of a neighbourhood took
  };
  void search_neighbourhood(Worker& worker, uint64_t seed) const;
  int64_t pricing_work(const Core& core, int sweeps) const;
  int64_t fair(int64_t work) const;
  RegionSearchLimits limits(int64_t patience) const;
  RegionSearchLimits repair_limits() const;

  Core core_;
  const SolveOptions& options_;
  const Deadline& end_;
  std::vector<Found> elites_;
  std::vector<double> slacks_;  // of all strategies, ascending
  Found tightest_;              // its cost: bytes above the limit
  uint64_t rounds_ = 0, attempts_ = 0;
  int stale_ = 0;  // rounds without a real gain
  int64_t work_ = 0;
  double setup_ = 0;
};

}  // namespace shardrun
