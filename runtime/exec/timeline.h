// Timeline: when the steps of an Executor ran, for its last runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun {

/// Keeps the last so many runs in memory that it takes at once: while it records, nothing is
/// allocated. A run is a step of training or the pass over a batch of validation.
///
///   Timeline timeline(10, 2000);
///   executor.record(&timeline);
///   timeline.begin_run(1); executor.begin_step(); …; timeline.end_run();
class Timeline {
 public:
  /// What an event is that is no step of the Program.
  static constexpr size_t kZeroing = SIZE_MAX;      // of what starts each step at zero
  static constexpr size_t kReading = SIZE_MAX - 1;  // of a batch
  struct Event {
    size_t step = 0;            // the first of …
    size_t count = 1;           // so many steps of the Program that ran as one
    double begin = 0, end = 0;  // s of steady_clock
  };
  struct Run {
    int64_t number = 0;
    double begin = 0, end = 0;
    std::span<const Event> events;  // in the order of their times
  };

  /// `runs` at least 1. Of a run with more than `events` events the rest are dropped.
  Timeline(int64_t runs, int64_t events);

  void begin_run(int64_t number);
  void add(size_t step, size_t count, double begin, double end);
  void end_run();

  /// Those that have ended, the oldest first.
  std::vector<Run> runs() const;

  static double now();

 private:
  struct Slot {
    int64_t number = 0;
    double begin = 0, end = 0;
    size_t events = 0;
  };
  size_t capacity_;            // events of a run
  std::vector<Event> events_;  // of all slots, one slot after the other
  std::vector<Slot> slots_;
  size_t started_ = 0, ended_ = 0;  // runs in all
};

}  // namespace shardrun
