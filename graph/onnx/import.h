// Import: an ONNX file becomes a Graph of internal ops.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx/annotations.h"
#include "graph/onnx/onnx_file.h"

namespace shardrun {

struct GivenWeights;

struct ImportOptions {
  std::map<std::string, int64_t> dims;  // symbolic dim -> size; a nameless one is 'input.axis'
  std::optional<int64_t> batch;         // size of every input's symbolic first dim
  bool training = true;                 // false: Dropout is the identity
  /// Indices straight from an input are not negative: who fills it sees to that. Else they may be.
  bool checked_indices = true;
  uint64_t seed = 0;  // of dropout masks

  /// Batch normalisations that were exported in inference form: as they are, unless the export's
  /// metadata says that the model was in training mode; or all by the batch's own statistics.
  enum class Mode { exported, train };
  Mode mode = Mode::exported;
  /// The running variance averages the unbiased variance, as PyTorch does, or the population's.
  enum class Statistics { pytorch, onnx };
  Statistics statistics = Statistics::pytorch;

  /// Regexes searched in the names of parameters; train_only: those that match, and no others.
  /// train adds to it, freeze wins.
  std::vector<std::string> freeze, train, train_only;

  /// The output that is the loss; "": one that is a floating scalar. has_own_loss false: none is,
  /// for a loss is computed on the first output.
  std::string loss_output;
  bool has_own_loss = true;

  /// Computes one node on constants: the reference kernels (run_reference). Without it nothing
  /// folds, and a model with shape arithmetic is refused.
  std::function<std::vector<Tensor>(const Node&, std::span<const Tensor>)> evaluate;

  /// One initialiser that an exporter made of several equal ones (all ones, all zeros): refuse,
  /// keep it shared, or give each use its own copy.
  enum class Shared { refuse, keep, split };
  Shared shared = Shared::refuse;

  std::map<std::string, Tensor> constants;  // graph inputs bound to known contents
  /// Numbers to begin with in place of the file's (graph/onnx/weights/given_weights.h). The graph's
  /// nodes and shapes do not depend on them.
  std::shared_ptr<const GivenWeights> weights;

  /// The contents of an integer input, one of `inputs`, that are the same in every step, if there
  /// are such. Asked only by a model with an operator whose result is as large as the contents say
  /// (NonZero): the input becomes a constant.
  std::function<std::optional<Tensor>(const std::string& input,
                                      const std::vector<std::string>& inputs)>
      contents;
};

struct ImportReport {
  struct Parameter {
    std::string name;
    TensorType type;
    bool trainable = true;
    std::string why;  // "PARAMETER in the export's metadata", "matches --freeze '…'"
    std::vector<std::string> other_names = {};  // which an exporter dropped, and flags match, too
    bool is_frozen = false;                     // by ImportOptions::freeze
  };
  std::vector<Parameter> parameters;
  std::vector<Parameter> constants;  // floats that the gradient reaches, but nothing trains,
                                     // and what forward() changes
  std::vector<std::string> inputs, outputs;  // names, in the file's order (and Graph::outputs')
  std::vector<std::string> notes;            // what was assumed, recognised or repaired
  int64_t ir_version = 0, opset = 0;
  std::string producer;
  /// Batch normalisations by the batch's own statistics (of these, exported in inference form) and
  /// by stored ones.
  int batch_statistics = 0, promoted = 0, stored_statistics = 0;
  std::map<std::string, int> operators;  // how many nodes of each ONNX op
  /// "label_smoothing=0.1" -> nodes: arguments that their operator has no place for, applied as the
  /// calls in the export's metadata say.
  std::map<std::string, std::vector<std::string>> restored;
  /// Other names that --freeze may match: parameters of the export's signature without use, and
  /// frozen ones that no gradient reaches.
  std::vector<std::string> gone;
  std::vector<std::string> unreached;          // parameters that no gradient reaches
  std::vector<std::string> gradient_stops;     // "Round 'enc/Round'": what lies between
  std::vector<std::string> given;              // weights that ImportOptions::weights had
  std::vector<std::string> inactive_dropouts;  // nodes that drop nothing, as they were exported
  Annotations annotations;                     // of the main graph's nodes, unchecked
  std::vector<PlacedNode> placed;              // the main graph's nodes that are not dead
};

/// The ONNX operators that import lowers, sorted: "Add", "Attention", ….
std::vector<std::string> supported_onnx_operators();

}  // namespace shardrun
