// Tensors of a module that forward() changes: running averages, counters, the vectors of a spectral
// norm, the weights of a momentum encoder. PyTorch's newer exporter names the value that each
// becomes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

struct ChangedTensor {
  std::string next;  // the value that it becomes
  /// Values that it is on the way, where forward() changes it several times, and reads it between.
  std::vector<std::string> earlier = {};
  /// Do readers of `next` read the tensor? Then no gradient flows into what changes it, for it
  /// lasts until after the step, and validation reads the tensor as training left it. Else the
  /// tensor keeps a copy of a value that forward() uses by itself.
  bool is_read_back = false;
  /// A parameter that changes by itself alone (it is normalised, or clamped): it learns as well.
  bool learns = false;
};

struct ChangedTensors {
  std::map<std::string, ChangedTensor> by_name;
  std::vector<std::string> notes;  // of those that the file holds too little of

  /// The values through which no gradient flows back.
  std::set<std::string> gradient_ends() const;
};

/// Those that the export's signature names, but for running statistics that a BatchNormalization
/// moves. `other_names` of tied tensors: the file's name of each. `loss`: the output that is
/// differentiated.
ChangedTensors find_changed_tensors(const ModelFile& model, const std::vector<FlatNode>& nodes,
                                    const std::map<std::string, std::string>& other_names,
                                    const std::string& loss);

/// What the signature says that tensors become, wanted whether or not an output depends on it.
std::set<std::string> values_of_changes(const ModelFile& model);

}  // namespace shardrun::importer
