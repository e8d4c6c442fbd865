// Live ranges: during which steps the buffers of a Program hold something.
//
// Time is the index of a step. A micro-batch runs the micro steps from the start again, so what
// lives from one micro-batch into the next is persistent; everything else is made anew in each.
// Values that cross into the update phase are the last micro-batch's.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "graph/program.h"

namespace shardrun {

/// Steps during which a buffer holds something, both inclusive. -1: filled by the host before step
/// 0; the number of steps: read by the host after the last.
struct LiveRange {
  static constexpr int kNever = std::numeric_limits<int>::max();
  int first = kNever, last = -1;
  bool persistent = false;
  bool zeroed = false;  // persistent memory whose contents end with their last reader
};

/// By buffer. A buffer that others are held by (memory_holders) is alive for as long as they are.
std::vector<LiveRange> live_ranges(const Program& program, const std::vector<BufferId>& holders);

/// {result, operand} positions of `step` that may share memory.
std::vector<std::pair<int, int>> alias_pairs(const Step& step);

/// May the result of step `s` take the memory of the operand, by what the step does and what lives
/// on?
bool may_alias(const Program& program, const std::vector<LiveRange>& live,
               const std::vector<BufferId>& holders, int s, std::pair<int, int> pair);

}  // namespace shardrun
