// One word of flags, which any thread sets.
#include "stop.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace shardrun {
namespace {

// Bit s: to stop, by signal s; bit 0: to stop, by no signal.
constexpr uint64_t kStop = 0xffffffff, kCheckpoint = uint64_t{1} << 32;

std::atomic<uint64_t> requested{0};
std::atomic<int> running{0};
std::atomic<bool> answered{false};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler could meet a lock that its own thread holds");

}  // namespace

bool request_stop(int signal) noexcept {
  if (running == 0) return false;
  return (requested.fetch_or(uint64_t{1} << std::clamp(signal, 0, 31)) & kStop) == 0;
}

void request_checkpoint() noexcept { requested |= kCheckpoint; }

Running::Running(Communicator& ranks) : ranks_(ranks.host()) {
  ranks_.barrier();
  ++running;
}

/// Runs of one process at once are all asked, and the last of them to end forgets it.
Running::~Running() {
  if (--running == 0 && answered.exchange(false)) requested &= ~kStop;
}

std::optional<int> Running::asked_to_stop() {
  const uint64_t asked = ranks_.any_of(requested), all = asked & kStop;
  if ((asked & kCheckpoint) != 0) {
    asked_for_checkpoint_ = true;
    requested &= ~kCheckpoint;
  }
  if (all == 0) return std::nullopt;
  answered = true;
  return all == 1 ? 0 : std::countr_zero(all & ~uint64_t{1});
}

}  // namespace shardrun
