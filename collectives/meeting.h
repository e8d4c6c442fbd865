// Where the ranks of a group wait for each other, in memory that all of them see.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace shardrun {

/// Of `size` ranks, which meet again and again; each may be a thread or a process. Whoever waits
/// polls at first if it `polls`, and else soon sleeps: whoever it waits for may want this core.
/// `seconds`: how long it waits, 0 for ever.
class Meeting {
 public:
  enum class Outcome { met, ended, timed_out };

  /// The first of a call. Once end() was called, or somebody's time was up, nobody comes together
  /// here any more: either all that are wanted have met, or each of them, also who comes later,
  /// hears that it has ended.
  /// `waits`, if there is one, is called now and then by a rank that has to wait for long.
  using Waits = std::function<void()>;
  Outcome enter(int size, double seconds, bool polls, const Waits& waits = nullptr) {
    return wait(size, seconds, polls, true, waits);
  }
  /// A later one of the same call, which end() leaves alone.
  Outcome meet(int size, double seconds, bool polls, const Waits& waits = nullptr) {
    return wait(size, seconds, polls, false, waits);
  }
  void end() noexcept;

 private:
  Outcome wait(int size, double seconds, bool polls, bool first, const Waits& waits);
  void release() noexcept;

  alignas(64) std::atomic<uint64_t> arrived_{0};  // twice as many as ever came; odd once ended
  std::atomic<uint32_t> sleepers_{0};
  /// Changes when all have come, or at the end: on a line that those who come do not write.
  alignas(64) std::atomic<uint32_t> released_{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace shardrun
