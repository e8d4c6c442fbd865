// Lockstep: parties that stop after each of their steps until one leader has looked at what they
// left.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <vector>

#include "base/tensor.h"

namespace shardrun {

/// Thrown through a party's executor to end it.
struct Stopped {};

class Lockstep {
 public:
  explicit Lockstep(size_t parties) : views_(parties) {}

  /// Shows what parties `first`, first + 1, … have after a step, one list each, and waits until the
  /// leader has looked. Throws Stopped if there is nothing to go on for.
  void arrive(size_t first, size_t step, const std::vector<std::vector<TensorView>>& views) {
    std::unique_lock lock(mutex_);
    if (stopped_) throw Stopped();
    for (size_t i = 0; i < views.size(); ++i) views_[first + i] = views[i];
    step_ = step;
    arrived_ += views.size();
    const int64_t mine = round_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return stopped_ || round_ != mine; });
    if (stopped_) throw Stopped();
  }

  /// The leader's: waits for all parties. Throws Stopped if one has failed.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || arrived_ == views_.size(); });
    if (stopped_) throw Stopped();
  }

  /// What wait() has waited for.
  size_t step() const { return step_; }
  const std::vector<std::vector<TensorView>>& views() const { return views_; }

  /// The leader's: lets the parties go on.
  void release() {
    const std::lock_guard lock(mutex_);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }

  /// Anybody's: ends all who wait, and who come.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TensorView>> views_;
  size_t arrived_ = 0, step_ = 0;
  int64_t round_ = 0;
  bool stopped_ = false;
};

}  // namespace shardrun
