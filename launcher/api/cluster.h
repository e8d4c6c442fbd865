// Which cluster a plan is for.
#pragma once

#include <string>

#include "planner/cluster.h"

namespace shardrun {

/// Where `shardrun calibrate` leaves what it measured: $SHARDRUN_CALIBRATION, else
/// $XDG_CACHE_HOME/shardrun/host.json, else ~/.cache/shardrun/host.json. Empty if
/// $SHARDRUN_CALIBRATION is "none" or there is no home.
std::string calibration_path();

/// What --cluster means: "" and "host" are this machine as it was calibrated, or constants if it
/// was not; anything else is load_cluster's. Throws invalid_input.
Cluster find_cluster(const std::string& text);

}  // namespace shardrun
