// ModelCopy: an ONNX file with other numbers in its tensors; all else is byte for byte as it was.
//
//   ModelCopy copy("gpt.onnx");
//   copy.set_numbers("h.0.attn.weight", {{DType::f32, {768, 2304}}, read});
//   copy.write("trained.onnx");
//
// The copy is made on protobuf's wire format and from front to back: what this version knows no
// message for stays, and a few MB are in memory however large the model is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/shape.h"
#include "graph/onnx/annotations.h"
#include "graph/onnx/onnx_file.h"

namespace shardrun::importer {

/// A tensor whose elements are made when they are asked for.
struct Numbers {
  TensorType type;
  /// Puts elements [first, first + count), counted row-major, to `out`.
  std::function<void(int64_t first, int64_t count, void* out)> read;
};

class ModelCopy {
 public:
  /// Throws invalid_input if the file cannot be read or is no model.
  explicit ModelCopy(const OnnxFile& file);
  ~ModelCopy();
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;

  // Changes of the main graph, whose nodes are counted as in the file. Throw invalid_input for what
  // it does not have.

  /// Stored as those before were: in the same type and field, or external file.
  void set_numbers(const std::string& initialiser, Numbers numbers);
  void add_initialiser(const std::string& name, DType stored, Numbers numbers);
  /// Behind a node's inputs: one more, and empty ones between.
  void set_input(size_t node, size_t input, const std::string& name);
  void remove_node(size_t node);
  /// Adds a device configuration, of which nodes then say what annotate() gives; one of this name
  /// goes, with all that nodes say of it. The copy has at least the IR version that knows them, 11.
  /// `held`: Annotations::Held::text of it; "": none.
  void set_configuration(const Annotations::Configuration& configuration,
                         const std::string& held = "");
  /// Of the configuration that was set.
  void annotate(size_t node, NodeAnnotation annotation);

  /// The files that write() writes: the model, then external data. These have the names that the
  /// model has for them if `output` is called like its file. Else that of "trained.onnx" is
  /// "trained.onnx.data"; several are below a folder of this name. Throws unsupported where a
  /// tensor that is no initialiser names one.
  std::vector<std::string> outputs(const std::string& output) const;
  /// All files take their places when all are whole. New initialisers go to external data where
  /// they are together larger than most_inline. Throws unsupported where a number is too large for
  /// its type or the model for protobuf, device where a disk is full.
  void write(const std::string& output) const;
  int64_t most_inline = int64_t{3} << 29;  // bytes

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shardrun::importer
