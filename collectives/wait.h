// Wait: how a rank waits for another one, polling first and then asleep.
#pragma once

#include <sched.h>

#include <chrono>

namespace shardrun {

/// Of a rank that has a core of its own: polls hard at first, since most meetings end in
/// microseconds, then lets others run, and may sleep after 20 ms. Not sooner: a core that halts
/// comes back late and slow, and the host of a virtual machine lends it out, caches and all.
class Wait {
 public:
  /// Call between two looks. Is it to go on looking, without sleeping?
  bool stay_awake() {
    if (++looks_ <= kHard) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      return true;
    }
    sched_yield();
    if (looks_ % 16 == 0) seconds_ = since_start();
    return seconds_ < kAwake;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kHard = 2000;
  static constexpr double kAwake = 0.02;

  double since_start() {
    const Clock::time_point now = Clock::now();
    if (start_ == Clock::time_point{}) start_ = now;
    return std::chrono::duration<double>(now - start_).count();
  }

  int looks_ = 0;
  Clock::time_point start_{};
  double seconds_ = 0;
};

}  // namespace shardrun
