// Ranges that the second stream may still touch, since the first last waited for it.
#include "exec/side_stream.h"

#include <algorithm>
#include <functional>

namespace shardrun {
namespace {

using Ranges = std::vector<StepMemory::Range>;

bool overlap(const Ranges& a, const Ranges& b) {
  const std::less<const char*> before;
  return std::any_of(a.begin(), a.end(), [&](const StepMemory::Range& x) {
    return before(x.first, x.second) &&
           std::any_of(b.begin(), b.end(), [&](const StepMemory::Range& y) {
             return before(y.first, y.second) && before(x.first, y.second) &&
                    before(y.first, x.second);
           });
  });
}

void append(Ranges& to, const Ranges& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

std::vector<bool> waits_for_side(std::span<const StepMemory> steps) {
  std::vector<bool> waits(steps.size(), false);
  Ranges read, written;
  for (size_t s = 0; s < steps.size(); ++s) {
    const StepMemory& step = steps[s];
    if (step.on_side) {
      append(read, step.reads);
      append(written, step.writes);
    } else if (overlap(step.reads, written) || overlap(step.writes, written) ||
               overlap(step.writes, read)) {
      waits[s] = true;
      read.clear();
      written.clear();
    }
  }
  return waits;
}

}  // namespace shardrun
