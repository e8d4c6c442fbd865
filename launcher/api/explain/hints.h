// Hints of a plan in words, and as a plan file keeps them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/planner.h"

namespace shardrun {

/// How many were followed, and what each of the others costs; "" without hints.
std::string hints_text(const std::vector<HintOutcome>& hints);

nlohmann::json hints_json(const std::vector<HintOutcome>& hints);
/// Throws invalid_input, naming `origin` and the field.
std::vector<HintOutcome> read_hints(const nlohmann::json& list, const std::string& origin);

}  // namespace shardrun
