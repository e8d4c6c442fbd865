// Stream waits: which steps wait for which, where collectives run on streams of their own.
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
  int stream = 0;  // 0: of kernels; from 1 on: of collectives
};

/// For each step, in the order in which they are asked for: those of other streams that have to end
/// before it begins. Steps of one stream run in order. A collective waits for the last kernel
/// before it. A kernel, or a collective on another stream, waits for the last collective of a
/// stream that still writes what it uses, or still reads what it writes, unless it stands behind
/// something that has waited for that. Example, with one stream of collectives:
///
///   all_reduce(g0), g1 = matmul(…), all_reduce(g1), update(g0), update(g1)
///
/// The first update waits for the first sum alone, and the second goes on meanwhile.
std::vector<std::vector<int>> stream_waits(std::span<const StepMemory> steps);

/// The range of an offset in bytes within memory that has no address yet.
StepMemory::Range range_at(int64_t offset, int64_t bytes);

}  // namespace shardrun
