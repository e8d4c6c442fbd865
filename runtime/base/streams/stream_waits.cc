// Who last read and wrote each address, a stream at a time.
#include "base/streams/stream_waits.h"

#include <algorithm>
#include <functional>
#include <map>

namespace shardrun {
namespace {

/// By address the last step that used it.
class LastUses {
 public:
  void set(const StepMemory::Range& range, int step) {
    if (!std::less<>()(range.first, range.second)) return;
    split(range.first);
    split(range.second);
    uses_.erase(uses_.lower_bound(range.first), uses_.lower_bound(range.second));
    uses_[range.first] = {range.second, step};
  }

  /// -1: none.
  int last(const StepMemory::Range& range) const {
    int step = -1;
    if (!std::less<>()(range.first, range.second)) return step;
    auto use = uses_.upper_bound(range.first);
    if (use != uses_.begin()) --use;
    for (; use != uses_.end() && std::less<>()(use->first, range.second); ++use) {
      if (std::less<>()(range.first, use->second.end)) step = std::max(step, use->second.step);
    }
    return step;
  }

 private:
  struct Use {
    const char* end = nullptr;
    int step = 0;
  };

  /// No use has `at` within it.
  void split(const char* at) {
    auto use = uses_.lower_bound(at);
    if (use == uses_.begin()) return;
    --use;
    if (!std::less<>()(at, use->second.end)) return;
    uses_[at] = use->second;
    use->second.end = at;
  }

  std::map<const char*, Use, std::less<>> uses_;  // by where they begin; none overlaps another
};

struct Stream {
  LastUses read, written;
  int last = -1;                // step that it was asked for
  std::vector<int> waited_for;  // by stream the last step that it waits for, -1
};

}  // namespace

std::vector<std::vector<int>> stream_waits(std::span<const StepMemory> steps) {
  int count = 1;
  for (const StepMemory& step : steps) count = std::max(count, step.stream + 1);
  std::vector<Stream> streams(static_cast<size_t>(count));
  for (Stream& stream : streams) stream.waited_for.assign(streams.size(), -1);
  std::vector<std::vector<int>> waits(steps.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    const StepMemory& step = steps[s];
    const auto own = static_cast<size_t>(step.stream);
    Stream& stream = streams[own];
    const auto wait = [&](size_t other, int last) {
      int& known = stream.waited_for[other];
      if (last <= known) return;
      known = last;
      waits[s].push_back(last);
    };
    if (own != 0) {  // and so for what kernels have waited for
      wait(0, streams[0].last);
      for (size_t other = 1; other < streams.size(); ++other)
        stream.waited_for[other] = std::max(stream.waited_for[other], streams[0].waited_for[other]);
    }
    for (size_t other = 1; other < streams.size(); ++other) {
      if (other == own) continue;
      int last = -1;
      for (const StepMemory::Range& range : step.reads)
        last = std::max(last, streams[other].written.last(range));
      for (const StepMemory::Range& range : step.writes)
        last =
            std::max({last, streams[other].written.last(range), streams[other].read.last(range)});
      wait(other, last);
    }
    stream.last = static_cast<int>(s);
    if (own == 0) continue;
    for (const StepMemory::Range& range : step.reads) stream.read.set(range, stream.last);
    for (const StepMemory::Range& range : step.writes) stream.written.set(range, stream.last);
  }
  return waits;
}

StepMemory::Range range_at(int64_t offset, int64_t bytes) {
  const auto* const begin = reinterpret_cast<const char*>(offset);
  return {begin, begin + bytes};
}

}  // namespace shardrun
