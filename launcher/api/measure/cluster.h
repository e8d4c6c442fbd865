// The Cluster that --cluster names: this machine as it was calibrated, a file, or a built-in one.
#pragma once

#include <string>

#include "planner/cost/cluster.h"

namespace shardrun {

/// Where `shardrun calibrate` leaves what it measured of the backend's devices:
/// $SHARDRUN_CALIBRATION, else $XDG_CACHE_HOME/shardrun/host.json (cuda.json), else
/// ~/.cache/shardrun/host.json. Empty if $SHARDRUN_CALIBRATION is "none" or there is no home.
std::string calibration_path();

/// What --cluster means: "" and "host" are this machine with the backend's devices as it was
/// calibrated, or Backend::cluster if it was not; anything else is load_cluster's. Throws
/// invalid_input, also for what was measured of another backend.
Cluster find_cluster(const std::string& text, int64_t ranks);

}  // namespace shardrun
