// By stream: what a device keeps for its stream, for code that knows only the stream.
#pragma once

#include <map>
#include <mutex>

namespace shardrun::cuda {

template <class T>
class ByStream {
 public:
  /// Null: there is none.
  T* find(const void* stream) {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(stream);
    return found == of_.end() ? nullptr : found->second;
  }
  /// Null: no more.
  void set(const void* stream, T* item) {
    const std::lock_guard lock(mutex_);
    if (item != nullptr) {
      of_[stream] = item;
    } else {
      of_.erase(stream);
    }
  }

 private:
  std::mutex mutex_;
  std::map<const void*, T*> of_;
};

}  // namespace shardrun::cuda
