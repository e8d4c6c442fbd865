// combine_collectives: a pass that makes all_reduces with no kernel between them one call.
#pragma once

#include "graph/program.h"

namespace shardrun {

/// Sets Step::call where one call of the Communicator can do the work of several steps
/// (Communicator::all_reduce_each): all_reduces over the same ranks, of one dtype and operation,
/// none of which reads what another makes, and with no kernel between them. Other collectives that
/// stand between them come behind the call. Ranks then wait for each other once for all of them.
/// Nothing is copied: each is reduced where it lies, in the order of ranks, so the bits are the
/// same; and buffers and workspaces stay, so the bytes are too.
///
///   a = all_reduce(da), b = all_reduce(db), c = all_reduce(dc)   are one call over {da, db, dc}
///   a = all_reduce(da, x), b = all_reduce(db, y), c = all_reduce(dc, x)   over the axes x and y
///                                                          are one over {da, dc}, and that of db
///
/// A step that a later pass takes away from its neighbours is by itself again.
/// Where a result cannot take its operand's memory, or nobody reads it, the step stays alone. To be
/// run on what Partition gives, whose steps are the same on every rank: later passes fuse what a
/// rank's own shapes allow, and all ranks must make the same calls.
void combine_collectives(Program& program);

}  // namespace shardrun
