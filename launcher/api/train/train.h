// Training as the library runs it: train() with what every rank records of it.
#pragma once

#include <functional>

#include "profile/profile.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// train(), recorded whatever the options say, and on every rank `see` gets what was.
TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options, const std::function<void(const RankProfile&)>& see);

}  // namespace shardrun
