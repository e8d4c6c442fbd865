// Trained numbers: a model's weights after training, element by element.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "exec/checkpoint/reader.h"
#include "graph/onnx/file/model_copy.h"
#include "graph/onnx/weights/weight_map.h"

namespace shardrun {

/// Where the numbers of values are: in the checkpoint; else, as training left them alone, among
/// those that the run was given, or in the model's file.
class TrainedNumbers {
 public:
  /// All outlive it and what it makes. `seed`: of weights that the file only describes.
  TrainedNumbers(const Checkpoint& checkpoint, const WeightMap& map,
                 const std::map<std::string, Source>& given, uint64_t seed);

  /// Does the value differ from what the model's file has?
  bool differs(const std::string& value) const;
  const Manifest::Tensor* in_checkpoint(const std::string& name) const {
    return checkpoint_.manifest().find(name);
  }

  /// The type of a tensor that is no value of the map, but in the checkpoint or among those given.
  std::optional<TensorType> type_outside_map(const std::string& name) const;

  /// A tensor of `shape` that runs of values make up. It is quick to read from front to back.
  importer::Numbers of(const std::vector<ValueRun>& runs, const Shape& shape) const;

 private:
  class RunReader;
  TensorType type_of(const std::string& value) const;
  void read(const std::string& value, const Box& box, void* out) const;

  const Checkpoint& checkpoint_;
  const WeightMap& map_;
  const std::map<std::string, Source>& given_;
  const uint64_t seed_;
};

}  // namespace shardrun
