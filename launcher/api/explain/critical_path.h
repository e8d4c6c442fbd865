// The time of a step on a device that runs collectives while kernels run.
#pragma once

#include <span>
#include <vector>

#include "graph/program.h"

namespace shardrun {

/// Seconds of a training step whose collectives run in order on a stream of their own, as the
/// Executor asks for them: a collective waits for all kernels before it, a kernel for those that
/// still use memory which it needs, and the end of a phase for everything. `seconds`: of one run of
/// each of program.steps, whose memory is placed. At least what either stream takes by itself, and
/// at most both together. `starts`, if given, gets when each step begins, of a phase that runs
/// several times the first time.
double critical_path(const Program& program, std::span<const double> seconds,
                     std::vector<double>* starts = nullptr);

}  // namespace shardrun
