// Side stream: which steps must wait for collectives on a device's second stream.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace shardrun {

/// What a step does with memory: half-open ranges of addresses. Empty ones may be there.
struct StepMemory {
  using Range = std::pair<const char*, const char*>;
  std::vector<Range> reads, writes;
  bool on_side = false;  // runs on the second stream
};

/// For each step, in the order in which the first stream meets them: does the first stream have to
/// wait for the second before it? Only a step of the first does, that would read what a collective
/// still writes, or write what one still reads or writes. Collectives wait for all that was asked
/// of the first stream before, and run in order, so they need no answer. Example: all_reduce(g0)
/// beside, g1 = matmul(…), all_reduce(g1) beside, update(g0): only the update waits, and then for
/// both.
std::vector<bool> waits_for_side(std::span<const StepMemory> steps);

}  // namespace shardrun
