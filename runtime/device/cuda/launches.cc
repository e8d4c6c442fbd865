// The devices that count, by their streams.
#include "device/cuda/launches.h"

#include "device/cuda/by_stream.h"

namespace shardrun::cuda {
namespace {

ByStream<Launches>& all_launches() {
  static ByStream<Launches> launches;
  return launches;
}

}  // namespace

void launched(const void* stream, int64_t count) {
  if (Launches* const launches = all_launches().find(stream)) launches->launched(count);
}

void set_launches_of(const void* stream, Launches* launches) {
  all_launches().set(stream, launches);
}

}  // namespace shardrun::cuda
