// Threads that are all joined, whatever happens to one of them or to the next one's start.
#pragma once

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {

/// Ends when they have ended: who waits in one of them for others that were not started has to be
/// stopped before.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup() { join(); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  /// Throws device if the system lends no more threads.
  template <class F, class... Arguments>
  void start(F&& f, Arguments&&... arguments) {
    try {
      threads_.emplace_back(std::forward<F>(f), std::forward<Arguments>(arguments)...);
    } catch (const std::system_error& e) {
      throw Error(
          ErrorKind::device,
          str("no thread could be started in addition to ", threads_.size(), " others (",
              e.code().message(), "); use fewer ranks, or raise 'ulimit -u' or 'ulimit -v'"));
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace shardrun
