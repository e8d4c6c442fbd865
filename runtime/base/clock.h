// Clocks: what a thread has used, which a busy machine does not stretch, and what went by.
#pragma once

#include <chrono>
#include <ctime>

namespace shardrun {

/// Seconds of processor time that this thread has used. Searches that give up after so many of
/// these find the same on an idle and on a crowded machine.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Of steady_clock: what went by.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace shardrun
