// FlatProblem: a Problem laid out for searches that change a few nodes at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/solver/problem.h"

namespace shardrun {

/// Arcs in both directions, and claims as ranges of the times that matter: a time is dropped if
/// everything alive then is also alive at a kept one. With intervals [0,3] [1,1] [2,3] only 1 and 3
/// are kept. The Problem must outlive this.
class FlatProblem {
 public:
  struct Arc {
    int other = 0;
    const double* by_other = nullptr;  // [other's strategy][own]
  };
  struct Range {
    int first = 0, end = 0;  // kept times
    const int64_t* bytes = nullptr;
  };
  explicit FlatProblem(const Problem& problem);

  const Problem& problem() const { return problem_; }
  int size() const { return static_cast<int>(arcs_.size()); }
  int strategies(int node) const {
    return static_cast<int>(problem_.nodes[static_cast<size_t>(node)].cost.size());
  }
  const double* cost(int node) const {
    return problem_.nodes[static_cast<size_t>(node)].cost.data();
  }
  const std::vector<Arc>& arcs(int node) const { return arcs_[static_cast<size_t>(node)]; }
  const std::vector<Range>& ranges(int node) const { return ranges_[static_cast<size_t>(node)]; }
  int times() const { return times_; }
  int64_t limit() const { return problem_.memory_limit; }

  /// Bytes at each kept time.
  std::vector<int64_t> usage(const Solution& solution) const;
  /// Sum over the kept times of the bytes above the limit.
  double overflow(const std::vector<int64_t>& use) const;

 private:
  const Problem& problem_;
  int times_ = 0;
  std::vector<std::vector<Arc>> arcs_;
  std::vector<std::vector<double>> transposed_;
  std::vector<std::vector<Range>> ranges_;
};

}  // namespace shardrun
