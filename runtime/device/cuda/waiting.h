// Waiting: how the host waits for a device that works behind it, watched, before it is far ahead.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace shardrun::cuda {

/// Who looks, while the host waits, whether that will ever end.
class Watches {
 public:
  /// Called with the seconds so far. May throw, and ends the wait so.
  using Watch = std::function<void(double waited)>;

  /// The watch goes with the returned object.
  std::shared_ptr<void> add(Watch watch) {
    std::erase_if(all_, [](const auto& w) { return w.expired(); });
    auto kept = std::make_shared<Watch>(std::move(watch));
    all_.push_back(kept);
    return kept;
  }
  /// All watch, also where one throws: the call that blocks the device may be another's.
  void look(double waited) const {
    std::exception_ptr first;
    for (const std::weak_ptr<Watch>& watch : std::vector(all_)) {
      try {
        if (const auto alive = watch.lock()) (*alive)(waited);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  std::vector<std::weak_ptr<Watch>> all_;
};

/// While pending() says so.
template <class Pending>
void wait_while(const Pending& pending, const Watches& watches) {
  constexpr double kSpin = 2e-3, kWatch = 20e-3;  // s
  const auto start = std::chrono::steady_clock::now();
  double looked = 0;
  while (pending()) {
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (waited > kSpin) usleep(50);  // long work: leave the core to others
    if (waited - looked < kWatch) continue;
    looked = waited;
    watches.look(waited);
  }
}

/// Nobody watches a launch that the stream's queue cannot take, behind a collective that does not
/// end: CUDA documents no number of launches that a stream takes before the host waits in one. So
/// the host waits itself before it is far ahead. Every kEvery launches it waits for the mark that
/// it left in the device's order of work so many launches ago, and leaves another.
class Ahead {
 public:
  static constexpr int64_t kEvery = 128;  // streams have been seen to take 1,000
  static constexpr int64_t kMost = 2 * kEvery;

  /// So many launches more were asked for: now the host is at most kMost ahead, and as many as two
  /// calls came to. wait() returns when the device has come to where leave() was called last.
  template <class Wait, class Leave>
  void asked(int64_t launches, const Wait& wait, const Leave& leave) {
    since_ += launches;
    if (since_ < kEvery) return;
    since_ = 0;  // also if a watch ends the wait
    if (left_) wait();
    leave();
    left_ = true;
  }

 private:
  int64_t since_ = 0;
  bool left_ = false;
};

}  // namespace shardrun::cuda
