// share: numbered pieces of work for a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace shardrun {

/// Does the pieces 0 to `count` - 1, each once, by up to `threads` threads of which this is one.
/// A piece must not throw. Returns the processor seconds of the others.
inline double share(int count, int threads, const std::function<void(int)>& piece) {
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) piece(i);
  };
  std::vector<double> seconds(static_cast<size_t>(std::max(0, std::min(threads, count) - 1)), 0.0);
  std::vector<std::thread> others;
  for (double& its : seconds) {
    others.emplace_back([&work, &its] {
      work();
      its = thread_seconds();
    });
  }
  work();
  for (std::thread& other : others) other.join();
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace shardrun
