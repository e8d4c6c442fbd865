// One word of flags, which any thread sets.
#include "ranks/stop.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>

namespace shardrun {
namespace {

// Bit s: to stop, by signal s; bit 0: to stop, by no signal.
constexpr uint64_t kStop = 0xffffffff, kCheckpoint = uint64_t{1} << 32;

std::atomic<uint64_t> requested{0};
std::atomic<int> running{0};
std::atomic<bool> answered{false};

/// A signal that a launcher sends to all processes reaches some of them later than others, whose
/// request was answered by then; and mpirun, where one rank has ended by it, sends it to the others
/// again. Until these times (ns) one more here is that same one.
std::atomic<int64_t> stopped_until{0}, checkpoint_until{0};
constexpr int64_t kLate = 1'000'000'000;  // ns
int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
                  std::atomic<int64_t>::is_always_lock_free,
              "a signal handler could meet a lock that its own thread holds");

}  // namespace

bool request_stop(int signal) noexcept {
  if (running == 0) return now() < stopped_until;
  return (requested.fetch_or(uint64_t{1} << std::clamp(signal, 0, 31)) & kStop) == 0;
}

void request_checkpoint() noexcept {
  if (checkpoint_until.exchange(0) < now()) requested |= kCheckpoint;
}

Running::Running(Communicator& ranks) : ranks_(ranks.host()) {
  ranks_.barrier();
  ++running;
}

/// Runs of one process at once are all asked, and the last of them to end forgets it.
Running::~Running() {
  if (--running > 0 || !answered.exchange(false)) return;
  stopped_until = now() + kLate;
  requested &= ~kStop;
}

std::optional<int> Running::asked_to_stop() {
  const uint64_t asked = ranks_.any_of(requested), all = asked & kStop;
  if ((asked & kCheckpoint) != 0) {
    asked_for_checkpoint_ = true;
    const bool own = (requested.fetch_and(~kCheckpoint) & kCheckpoint) != 0;
    if (!own && running == 1) checkpoint_until = now() + kLate;  // thread ranks share theirs
  }
  if (all == 0) return std::nullopt;
  answered = true;
  return all == 1 ? 0 : std::countr_zero(all & ~uint64_t{1});
}

}  // namespace shardrun
