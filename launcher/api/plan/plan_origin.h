// What a plan file says of the model and the request that it was made for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shardrun/shardrun.h"

namespace shardrun {

/// A model's path and options, for read_origin.
nlohmann::json origin_json(const PlannedModel& model);
/// The same read again. `origin`: the file and the field, for errors, such as "p.json: field
/// model".
PlannedModel read_origin(const nlohmann::json& object, const std::string& origin);

/// What a plan's model was loaded with that it is not here: "--batch 4 (here 8)"; "": nothing.
std::string other_options(const ModelOptions& planned, const ModelOptions& here);

/// Under what the search was made, so that `explain --why` searches under the same: memory_bytes,
/// the limit of a rank (0: none), and shard.
nlohmann::json request_json(const PlanRequest& request);
PlanRequest read_request(const nlohmann::json& object, const std::string& origin);

}  // namespace shardrun
