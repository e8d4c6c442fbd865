// The model that a checkpoint is of, as its manifest names it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model.h"

namespace shardrun {

/// Which files a run was trained from. What else its model follows from is in RunState::options.
struct TrainedModel {
  std::string path, fingerprint;  // of the model's file: absolute; fingerprint_of
  std::vector<std::string> ops;   // ModelOptions::ops, absolute
  /// Constants of the model that ModelOptions::weights gave other numbers: no checkpoint has them.
  std::vector<std::string> given;
  // Where there are some:
  std::string weights, weights_fingerprint;  // absolute; blocks_hash
  std::vector<std::string> except;           // ModelOptions::weights_except
};
TrainedModel trained_model(const Model::Impl& model);
nlohmann::json to_json(const TrainedModel& model);
/// Throws invalid_input naming the field, with `origin` in front.
TrainedModel read_trained_model(const nlohmann::json& object, const std::string& origin);

}  // namespace shardrun
