// share: numbered pieces of work for a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/thread_group.h"

namespace shardrun {

/// Does the pieces 0 to `count` - 1, each once, by up to `threads` threads of which this is one.
/// Returns the processor seconds of the others. Where pieces throw, it does all the same, and then
/// rethrows what the first of them threw. Throws device if the system lends no more threads.
inline double share(int count, int threads, const std::function<void(int)>& piece) {
  std::atomic<int> next{0};
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(std::max(0, count)));
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        piece(i);
      } catch (...) {
        thrown[static_cast<size_t>(i)] = std::current_exception();
      }
    }
  };
  std::vector<double> seconds(static_cast<size_t>(std::max(0, std::min(threads, count) - 1)), 0.0);
  ThreadGroup others;
  for (double& its : seconds) {
    others.start([&work, &its] {
      work();
      its = thread_seconds();
    });
  }
  work();
  others.join();
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace shardrun
