// TrainOptions as JSON, as far as a run's numbers depend on them, and the Schedule that they ask
// for.
#pragma once

#include <nlohmann/json.hpp>

#include "exec/learning_rate.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// Those that a run's numbers depend on, by name; not files, nor what is printed.
nlohmann::json learning_options(const TrainOptions& options);
/// Back from there; one that is missing has its default. Throws invalid_input, with `origin` in
/// front, where one is of another kind.
TrainOptions read_learning_options(const nlohmann::json& options, const std::string& origin);

/// How many steps of a run may be left out for numbers that are not finite: TrainOptions::on_nan.
/// Throws invalid_input if that says neither "stop" nor "skip N".
int64_t steps_to_skip(const TrainOptions& options);

/// Throws invalid_input if it cannot be followed.
Schedule make_schedule(const TrainOptions& options);

}  // namespace shardrun
