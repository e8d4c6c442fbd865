// OnnxFile: a model's file, opened once and parsed once, whatever is asked of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files/input_file.h"

namespace shardrun {

class Graph;
struct ImportOptions;
struct ImportReport;
struct WeightMap;

/// An input as the file declares it.
struct DeclaredInput {
  struct Dim {
    std::string symbol;  // as ImportOptions::dims names it; "": it has a size
    int64_t size = 0;
  };
  std::string name;
  std::vector<Dim> dims;
};

struct SymbolicDim {
  std::string name;  // as ImportOptions::dims names it
  std::string input;
  int64_t axis = 0;
};

/// An ONNX file. It is opened when it is first asked for something, and then stays open: weights
/// are read from the file that was there at that time, even if its path has another by now. Copies
/// are of the one open file. For one thread.
///
/// Where a function throws, it is invalid_input for a malformed file and unsupported for what has
/// no lowering, naming file, node, operator and opset.
class OnnxFile {
 public:
  OnnxFile(const std::string& path);  // NOLINT(google-explicit-constructor): a path is one

  const std::string& path() const;
  const InputFile& file() const;  // throws where it cannot be opened
  /// The files of external data that its tensors name, whether or not they are there. Empty for
  /// what is no model.
  const std::vector<std::string>& external_files() const;
  /// What its metadata_props say under keys of ours ('shardrun.…'), of equal keys the last. Empty
  /// for what is no model. Throws where the file cannot be opened.
  const std::map<std::string, std::string>& metadata() const;
  /// Those that are tensors with a shape, in the file's order. Throws.
  const std::vector<DeclaredInput>& declared_inputs() const;
  /// The symbolic dims of these, in order of appearance. Throws.
  std::vector<SymbolicDim> symbolic_dims() const;

  /// Reads ONNX opset 13 to 28 (IR up to 14; older opsets where their ops never changed). Weights
  /// become Role::parameter with a Source that points into the file, so that a rank reads only its
  /// shard; integers, buffers and single numbers that are no weights become constants; running
  /// statistics of batch normalisations, and what else forward() changes by the export's metadata,
  /// Role::state with an update. A parameter that forward() changes and that is trained has an
  /// update, too. graph.loss is set if an output is the loss. Throws.
  ///
  /// Takes the parsed nodes, so that they and the Graph are not in memory twice: what imports a
  /// file again parses it again. As does what maps its weights.
  Graph import(const ImportOptions& options, ImportReport* report = nullptr) const;
  /// Read as by import, as far as that takes no sizes of symbolic dims. Throws.
  WeightMap map_weights(const ImportOptions& options) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Its own path and those of external data.
std::vector<std::string> files_of_model(const OnnxFile& file);

}  // namespace shardrun
