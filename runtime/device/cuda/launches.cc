// The devices that count, by their streams.
#include "device/cuda/launches.h"

#include <map>
#include <mutex>

namespace shardrun::cuda {
namespace {

std::mutex mutex;
std::map<const void*, Launches*>& all() {
  static std::map<const void*, Launches*> launches;
  return launches;
}

Launches* find(const void* stream) {
  const std::lock_guard lock(mutex);
  const auto found = all().find(stream);
  return found == all().end() ? nullptr : found->second;
}

}  // namespace

void launched(const void* stream, int64_t count) {
  if (Launches* const launches = find(stream)) launches->launched(count);
}

void set_launches_of(const void* stream, Launches* launches) {
  const std::lock_guard lock(mutex);
  if (launches != nullptr) {
    all()[stream] = launches;
  } else {
    all().erase(stream);
  }
}

}  // namespace shardrun::cuda
