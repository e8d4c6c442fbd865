// Deadline: the time, or the amount of work, at which a search has to end.
#pragma once

#include <algorithm>
#include <ctime>

namespace shardrun {

// Work: a clock that a search's own steps move, so that what is found when it runs out does not
// depend on the machine or on what else it runs.

namespace internal {
inline thread_local double work = 0;
}

/// Counts additions of numbers that lie next to each other, comparisons and the like; loops over
/// many count them together. Other steps count as SearchWork says.
inline void count_work(double operations) { internal::work += operations; }

/// How many such additions take as long as a step: measured on a Xeon at 2.1 GHz.
struct SearchWork {
  double vectored = 0.2;      // an element of a table that goes through registers of vectors
  double far_vectored = 0.5;  // the same where the table is seldom in cache
  double named = 4;           // an element that is found by the name of a strategy
  double candidate = 20;      // made and sorted
  double neighbour = 20;      // of a node in a forest
  double listed_edge = 15;    // put where its nodes' edges lie
  double far_edge = 25;       // that is seldom in cache
  double message = 40;        // begun
  double table = 60;          // allocated
  double forest_node = 60;    // reached
  double node_vectors = 100;  // allocated for a node
  double removal = 500;       // of a node, with edges between its neighbours
};
inline constexpr SearchWork kSearchWork;

/// What this thread has counted, in seconds of a core that does so many of them a second.
inline double work_seconds() {
  constexpr double kOperations = 1e9;
  return internal::work / kOperations;
}

/// Seconds of the wall's clock, or of the work that the thread counts. By the wall's clock any
/// thread may ask, by work the one that made the Deadline.
class Deadline {
 public:
  enum class Clock { wall, work };

  explicit Deadline(double seconds, Clock clock = Clock::wall) : clock_(clock) {
    begin_ = now();
    end_ = begin_ + std::max(0.0, seconds);
  }

  Clock clock() const { return clock_; }
  double elapsed() const { return now() - begin_; }
  double left() const { return end_ - now(); }
  bool passed() const { return now() >= end_; }
  /// How much of the time is used up: 0 to 1, or more.
  double used_fraction() const { return end_ > begin_ ? (now() - begin_) / (end_ - begin_) : 1.0; }
  /// By the same clock: so many seconds from now, but not later than this one.
  Deadline within(double seconds) const {
    Deadline sooner = *this;
    sooner.begin_ = now();
    sooner.end_ = std::min(end_, sooner.begin_ + std::max(0.0, seconds));
    return sooner;
  }

 private:
  double now() const {
    if (clock_ == Clock::work) return work_seconds();
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  Clock clock_;
  double begin_ = 0, end_ = 0;
};

}  // namespace shardrun
