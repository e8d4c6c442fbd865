// A run that is started again where it fails.
#pragma once

#include "options.h"

namespace shardrun::cli {

/// Runs the call of `args` as a child, without its --restarts and under its --mpirun, if there is
/// one, with this process's streams, in a process group of its own. Ranks of this machine that the
/// child leaves behind are ended (process/orphans.h). Where it fails starts it again, from the
/// newest checkpoint of its folder, or from the newest whole one where that one was refused for its
/// damage, up to args.restarts times: each time on those of --mpirun's hosts that answer
/// (process/hosts.h), where they are fewer ranks without its --mesh and --plan. A start like an
/// earlier one, or of as many ranks, takes the plan that the earlier one has left in the folder
/// (kept_plan.h), unless --plan names one; a plan that is refused (2) is made anew. Behind two
/// starts and more that failed alike, by themselves (not by a signal) and without a newer
/// checkpoint, it waits for a second, then for twice as long each time, up to 64. Signals that end
/// a run, or ask it for a checkpoint, are passed on; the former end it, with their status (130)
/// unless the child's is 0. Else returns the status of the last child. A wrong call (2) and a run
/// that was stopped (129, 130, 143) are not started again. Throws Failure(call) without a folder
/// for checkpoints, and on a launcher's ranks, which cannot start their job.
int run_with_restarts(const Arguments& args);

}  // namespace shardrun::cli
