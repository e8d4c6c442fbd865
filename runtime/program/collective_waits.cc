// Buffers as ranges of one address each, since memory is not placed yet.
#include "program/collective_waits.h"

#include <algorithm>

#include "base/streams/stream_waits.h"

namespace shardrun {

std::vector<int> overlapped_ends(const Program& program, const std::vector<BufferId>& holders) {
  const auto range = [&](BufferId b) { return range_at(holders[static_cast<size_t>(b)], 1); };
  const size_t count = program.steps.size();
  std::vector<int> ends(count);
  for (size_t first = 0, end = 0; first < count; first = end) {
    while (end < count && program.steps[end].phase == program.steps[first].phase) ++end;
    std::vector<StepMemory> memory;
    for (size_t s = first; s < end; ++s) {
      const Step& step = program.steps[s];
      StepMemory& uses = memory.emplace_back();
      uses.stream = step.kind == Step::Kind::collective && !step.collective->traits().local ? 1 : 0;
      for (BufferId b : step.in) uses.reads.push_back(range(b));
      for (BufferId b : step.out) uses.writes.push_back(range(b));
    }
    const std::vector<std::vector<int>> waits = stream_waits(memory);
    size_t running = 0;  // of the phase the first step that may not have ended
    const auto ended = [&](size_t last, size_t before) {
      for (; running <= last; ++running) {
        const bool overlaps = memory[running].stream != 0;
        ends[first + running] = static_cast<int>(first + (overlaps ? before : running));
      }
    };
    for (size_t s = 0; s < memory.size(); ++s) {
      if (memory[s].stream != 0) continue;
      for (int last : waits[s]) ended(static_cast<size_t>(last), s - 1);
    }
    ended(memory.size() - 1, memory.size() - 1);
  }
  return ends;
}

}  // namespace shardrun
