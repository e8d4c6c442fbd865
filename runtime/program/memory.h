// Memory: where in one arena the buffers of a Program lie.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// What is spent where there is memory (docs/results/planning.md).
inline constexpr double kHoldFraction = 0.1;

/// Bytes of an arena that nothing limits.
inline constexpr int64_t kAnyArena = std::numeric_limits<int64_t>::max();

/// What a Program is compared with, in bytes of its arena.
struct ArenaLimits {
  int64_t fits = kAnyArena;    // no rank is to run it if it takes more
  int64_t enough = kAnyArena;  // how many more it takes is of no matter
};

/// What the backend needs for a step.
using NeedsOf = std::function<StepBytes(const Program&, const Step&)>;

/// Gives every buffer and workspace its offset. Persistent buffers come first, in order of their
/// names' appearance, then what setup makes, then what kernels keep; a result may take over a dying
/// operand's memory where OpDef::in_place allows, and an update its parameter's. So may what the
/// update phase makes of state that starts every step at zero, behind the last reader of that. A
/// reshape's result shares its operand's (memory_holders). Temporary buffers: best fit over live
/// ranges, those that keep fused steps whole where that takes no more bytes; else chains are cut
/// (runtime/program/fusion/chains.h).
/// Collectives::apart: what a collective uses is given to kernels that would have to wait for it as
/// late as that takes no more bytes (runtime/program/collective_waits.h), or no more than
/// `hold_fraction` of the temporary ones.
/// `limits`: a Program that does not fit gives nothing to kernels later, keeps no fused steps
/// whole, and takes roughly as few bytes as it can if those are more than enough.
/// `persistent_like`: lay persistent buffers out as that Program did (an eval Program by its
/// training Program), appending none.
void place_memory(Program& program, const NeedsOf& needs, const Program* persistent_like = nullptr,
                  Collectives collectives = Collectives::together, double hold_fraction = 0,
                  const ArenaLimits& limits = {});

/// By buffer the one in whose memory it lies: a reshape's result in its operand's, even where both
/// are read afterwards, unless the host or another step writes either of them, or it is persistent.
/// All others in their own.
std::vector<BufferId> memory_holders(const Program& program);

/// Of a placed Program: is the step a reshape whose result lies where its operand does, so that
/// nothing is done?
bool stays_in_place(const Program& program, const Step& step);

/// By step: will its first result lie where its first operand did, wherever that is placed?
std::vector<bool> runs_in_place(const Program& program);

/// What a placed Program's arena holds: all of it, and per node of the Graph the most that is alive
/// in a step at it (its kernel, or a collective in front of it or behind it), workspaces included.
struct ArenaUse {
  int64_t bytes = 0;
  std::vector<int64_t> alive;
};
ArenaUse arena_use(const Program& program, const Graph& graph);

}  // namespace shardrun
