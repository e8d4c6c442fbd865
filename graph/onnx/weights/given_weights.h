// GivenWeights: numbers that a model begins with in place of those in its file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/onnx/weights/weight_map.h"

namespace shardrun {

/// Tensors by name, of a safetensors file, a folder of them, another model, a checkpoint.
struct GivenWeights {
  struct Tensor {
    Shape shape;
    std::string dtype;             // as the file has it: "F16"
    std::optional<Source> source;  // none: of a type that we do not read
  };
  std::string origin;  // "--weights FILE", which begins what is said of them
  std::map<std::string, Tensor> tensors;
  bool complete = true;  // false: constants of the model stay as they are, if they are not there
  std::vector<std::string> except;  // regexes searched in names: these stay as they are
};

/// The source of a matrix's transpose.
Source transposed(Source source);

/// What GivenWeights give a model.
struct MatchedWeights {
  /// By value of the graph; also those of the module's tensors that WeightMap::missing has, which
  /// may be a state that the file does not begin with.
  std::map<std::string, Source> sources;
  std::vector<std::string> notes;
};

/// Gives each value of `map` that training keeps, and each persistent buffer of the module, its
/// numbers: by the names that the module has for them, else by their own. All of these may have a
/// prefix more or less than in `given` (module., model., _orig_mod.), the same for all. Names of
/// tied weights are one tensor, of which one name is enough.
///
/// Throws one invalid_input for all that is missing, that belongs to nothing, and whose shape or
/// type is another. What the model does not need is no mistake: counts of batches, tensors of the
/// module that no node reads, a second name for the same numbers.
MatchedWeights match_weights(const WeightMap& map, const GivenWeights& given);

}  // namespace shardrun
