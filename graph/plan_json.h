// A plan as a JSON object, for files that hold more than a plan.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "graph/plan.h"

namespace shardrun {

/// What to_json writes as text.
nlohmann::json json_of(const Plan& plan);

}  // namespace shardrun
