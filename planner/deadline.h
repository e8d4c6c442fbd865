// When a search has to end.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <ctime>

namespace shardrun {

/// Seconds of the wall's clock, or of the processor time of the thread that made the Deadline,
/// which a busy machine does not stretch. Any thread may ask while that one lives.
class Deadline {
 public:
  explicit Deadline(double seconds, bool processor_time = false) {
    if (processor_time) pthread_getcpuclockid(pthread_self(), &clock_);
    begin_ = now();
    end_ = begin_ + std::max(0.0, seconds);
  }

  bool of_processor() const { return clock_ != CLOCK_MONOTONIC; }
  double elapsed() const { return now() - begin_; }
  double left() const { return end_ - now(); }
  bool passed() const { return now() >= end_; }
  /// How much of the time is used up: 0 to 1, or more.
  double share() const { return end_ > begin_ ? (now() - begin_) / (end_ - begin_) : 1.0; }
  /// By the same clock: so many seconds from now, but not later than this one.
  Deadline within(double seconds) const {
    Deadline sooner = *this;
    sooner.begin_ = now();
    sooner.end_ = std::min(end_, sooner.begin_ + std::max(0.0, seconds));
    return sooner;
  }

 private:
  double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  clockid_t clock_ = CLOCK_MONOTONIC;
  double begin_ = 0, end_ = 0;
};

}  // namespace shardrun
