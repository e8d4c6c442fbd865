// The arrays that run_model is given, and the samples in them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/data/data_files.h"
#include "exec/data/data_readers.h"
#include "graph/onnx/import.h"
#include "shardrun/shardrun.h"

namespace shardrun {

class GivenArrays {
 public:
  /// X.npy or X.npz. Throws invalid_input.
  explicit GivenArrays(const std::string& path);
  const std::string& path() const { return path_; }
  /// The array for a model's input, null if there is none: of an .npy the only input's.
  const StoredArray* find(const std::string& input, size_t inputs) const;
  /// What there is, for people: "'x', 'mask'".
  std::string names() const;

 private:
  std::string path_;
  std::optional<StoredArray> alone_;
  std::optional<NpzArchive> archive_;
};

/// How the arrays go through the model.
struct Turns {
  int64_t samples = 0;                 // of the arrays; 0: they are one batch and count none
  int64_t batch = 0;                   // samples of a turn
  bool symbolic = true;                // may a turn have another size?
  std::set<std::string> symbols = {};  // dims that count samples
  int64_t count() const { return samples == 0 ? 1 : (samples + batch - 1) / batch; }
  /// Is a turn anything but all samples and no other?
  bool divide() const { return samples != 0 && samples != batch; }
};

/// Binds the model's symbolic dims to the arrays' sizes, and the batch to options.batch, or to what
/// fits the arrays. Throws invalid_input naming the dim, both inputs and both sizes.
Turns bind_to_arrays(const OnnxFile& model, const GivenArrays& arrays, ModelOptions& options);

/// Reads them turn by turn.
class RunInputs {
 public:
  /// `fields`: the inputs that the graph reads, as it has them. Throws invalid_input: an input
  /// without an array, another rank or size, floats for integers or the reverse.
  RunInputs(const GivenArrays& arrays, std::vector<BatchField> fields, size_t inputs,
            const Turns& turns);

  const std::vector<BatchField>& fields() const { return fields_; }
  /// `box` of a field in a turn, dense; behind the last sample the last again. Throws
  /// invalid_input: an integer outside of the field's bound, a number that is not one (NaN).
  void read(int64_t turn, const BatchField& field, const Box& box, void* out) const;

 private:
  struct Input {
    Samples samples;
    std::unique_ptr<SampleReader> reader;
  };
  const Turns turns_;
  std::vector<BatchField> fields_;
  std::map<std::string, Input> inputs_;
};

}  // namespace shardrun
