// Launches: counts what is asked of a stream, so that the host waits before a launch would have to.
#pragma once

#include <cstdint>

namespace shardrun::cuda {

/// A device's count of what its stream was asked for.
class Launches {
 public:
  virtual ~Launches() = default;
  /// So many more. May wait for the device, and then throws what a watch throws (waiting.h).
  virtual void launched(int64_t count) = 0;
};

/// Called behind whatever puts work into a stream: a kernel, a copy, an event. Nobody counts on a
/// stream that is no device's.
void launched(const void* stream, int64_t count = 1);
/// What a call of a vendor's library, or a recorded step, counts as: it may be several kernels, and
/// none says how many.
inline constexpr int64_t kLibraryLaunches = 8;

/// A device says which are its own, and with null that it ends.
void set_launches_of(const void* stream, Launches* launches);

}  // namespace shardrun::cuda
