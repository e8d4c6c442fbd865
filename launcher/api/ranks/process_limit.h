// What a rank's process takes besides its arena, and whether a limit holds both.
#pragma once

#include <cstdint>

#include "collectives/communicator.h"

namespace shardrun {

/// Bytes that this process is to take besides arenas: what it holds now (code, heap, what MPI has)
/// and what steps make it take: kernels' code, threads' stacks, messages. Rounded up coarsely, so
/// that the same call has the same plan whatever the heap just holds.
int64_t expected_process_bytes();

/// What data may be unpacked into: `memory` bytes for each of the `threads` ranks that share this
/// process, and never more than its part of the machine's memory or of its control group's. 0: that
/// alone.
void limit_unpacking(int64_t memory, int threads);

/// Before an arena of `arena_bytes` is allocated: throws Error(out_of_memory), the same on every
/// rank, where some rank's process then would take more than `limit` bytes, with the numbers of the
/// fullest. 0: no limit. `threads`: ranks that share a process, and its limit of `limit` each.
/// Collective.
void require_process_fits(Communicator& host, int64_t limit, int64_t arena_bytes, int threads);

}  // namespace shardrun
