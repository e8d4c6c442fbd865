// Time that a busy machine does not stretch.
#pragma once

#include <ctime>

namespace shardrun {

/// Seconds of processor time that this thread has used. Searches that give up after so many of
/// these find the same on an idle and on a crowded machine.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace shardrun
