// PlannerChoice: which planner, of baselines which, from the text that flags and plan files have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/names/search_names.h"

namespace shardrun {

struct PlannerChoice {
  PlannerKind kind = PlannerKind::automatic;
  /// One for each axis of the mesh, in order; a single one holds for all axes.
  std::vector<Baseline> baselines = {};
  bool operator==(const PlannerChoice&) const = default;
};

/// "mcts", "fsdp+megatron". Throws invalid_input, with the names that there are.
PlannerChoice parse_planner(std::string_view text);
std::string to_string(const PlannerChoice& planner);

}  // namespace shardrun
