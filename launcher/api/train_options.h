// What a training run is asked to do.
#pragma once

#include "exec/schedule.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// Throws invalid_input if it cannot be followed.
Schedule make_schedule(const TrainOptions& options);

}  // namespace shardrun
