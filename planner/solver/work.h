// Work: a clock that a search's own steps move, so that what is found when it runs out does not
// depend on the machine or on what else it runs.
#pragma once

namespace shardrun {

namespace internal {
inline thread_local double work = 0;
}

/// Counts additions, comparisons and the like; loops over many count them together.
inline void count_work(double operations) { internal::work += operations; }

/// What this thread has counted, in seconds of a core that does so many of them a second.
inline double work_seconds() {
  constexpr double kOperations = 1e9;
  return internal::work / kOperations;
}

}  // namespace shardrun
