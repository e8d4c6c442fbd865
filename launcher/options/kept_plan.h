// Where a run that writes checkpoints keeps the plan that it trains by.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun {

/// In its folder of checkpoints, by the number of ranks: "run/plan-4-ranks.json".
inline std::string kept_plan_path(const std::string& folder, int64_t ranks) {
  return folder + "/plan-" + std::to_string(ranks) + "-ranks.json";
}

}  // namespace shardrun
