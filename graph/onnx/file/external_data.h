// External data: a model's tensors in files next to it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/files/input_file.h"
#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// The file of external data that `location` names. Throws invalid_input if it lies outside of the
/// model's folder, or is not there.
std::string resolve_location(const std::string& location, const std::string& folder);

/// Files of external data next to a model, each opened once.
class ExternalData {
 public:
  /// The model's folder. "": the working directory.
  explicit ExternalData(std::string folder) : folder_(std::move(folder)) {}
  /// Throws invalid_input as resolve_location does, or where it cannot be opened.
  const std::shared_ptr<const InputFile>& file(const std::string& location);

 private:
  std::string folder_;
  std::map<std::string, std::shared_ptr<const InputFile>> files_;  // by location
};

/// The locations that a model's tensors name, checked in no way.
std::set<std::string> external_locations(const ::onnx::ModelProto& model);

}  // namespace shardrun::importer
