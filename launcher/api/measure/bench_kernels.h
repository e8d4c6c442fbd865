// Ceilings and timed calls: what benchmarks of kernels and of steps share.
#pragma once

#include <vector>

#include "graph/program.h"
#include "measure/calibrate.h"
#include "shardrun/bench.h"

namespace shardrun {

/// The World's one rank with all its threads. Throws invalid_input if there are several ranks.
RankTeam own_team(World& world);

Ceilings measure_ceilings(RankTeam& team);

/// Steps of a Program that call a kernel alike.
struct ProgramCall {
  CalibrationCall call;  // of the first of them
  int64_t calls = 0;     // in a step of training
  bool stays = false;    // its result lies where its operand does, and nothing is done
};
std::vector<ProgramCall> calls_of(const Program& program);

/// Every different call of a step of the Program.
KernelBench bench_calls(RankTeam& team, const Program& program);

}  // namespace shardrun
