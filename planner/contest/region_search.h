// RegionSearch: regions of a Problem solved exactly, one after the other, with the rest fixed.
#pragma once

#include <random>
#include <vector>

#include "planner/contest/region.h"
#include "planner/solver/deadline.h"
#include "planner/solver/flat_problem.h"

namespace shardrun {

/// From [0, 1).
inline double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

struct RegionSearchLimits {
  Deadline deadline;
  int64_t work = 0;              // RegionMove::work in all; 0: not limited
  double target = -kInfeasible;  // stop at this cost
  /// Stop when the last third of the work, and at least so much, gained less than kStale of the
  /// cost; 0: go on.
  int64_t patience = 0;
};

/// Regions are drawn around one node, or around nodes that are alive at the same scarce time. Kind,
/// size and effort are drawn by what they gained for their work of late. Deterministic as long as
/// the work ends before the deadline. Not thread-safe: one per thread.
class RegionSearch {
 public:
  static constexpr double kStale = 1e-4;

  /// flat must outlive this.
  RegionSearch(const FlatProblem& flat, uint64_t seed);

  /// Starts from a solution, which may exceed the limit, and prices of memory per kept time (a
  /// guess, by which scarce times are chosen).
  void set(const Solution& choice, const std::vector<double>& price);

  /// Brings the bytes below the limit. False if there was no way within the deadline and the work.
  bool repair(const RegionSearchLimits& limits);
  /// Only if nothing exceeds the limit.
  void improve(const RegionSearchLimits& limits);

  const Solution& choice() const { return state_.choice; }
  const std::vector<double>& price() const { return state_.price; }
  double cost() const { return state_.cost; }
  double overflow() const { return flat_.overflow(state_.use); }
  int64_t work() const { return work_; }

 private:
  struct Arm {
    double gain = 0, work = 1;
  };
  struct Pick {
    size_t arm = 0, kind = 0, size = 0;
    double table = 0;
  };
  int random_free() { return free_[random_() % free_.size()]; }
  bool alive_at(int node, int time) const;
  int random_alive(int time);
  int random_scarce();
  Pick draw();
  void grow(int from, size_t size);
  void region(size_t kind, size_t size, int time);
  bool apply(const std::vector<std::pair<int, int>>& changes, bool only_if_better);
  double cost_around(const std::vector<std::pair<int, int>>& changes) const;
  void move_bytes(const std::vector<std::pair<int, int>>& changes, int64_t sign);

  const FlatProblem& flat_;
  RegionSolver solver_;
  std::mt19937_64 random_;
  RegionState state_;
  std::vector<int> free_;              // nodes with a choice
  std::vector<double> priced_before_;  // sums of the prices up to each time, it included
  std::vector<Arm> arms_;
  std::vector<int> nodes_;  // of the region
  std::vector<int> taken_;  // by the region with this number
  int region_number_ = 0;
  std::vector<int> front_, old_;
  int64_t work_ = 0;
};

}  // namespace shardrun
