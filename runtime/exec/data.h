// Data sources: what fills the batch inputs of a training step.
//
// A source is a pure function of (seed, global micro-batch number, element): every rank asks only
// for its box of a batch, and the global batches are the same on any mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/shape.h"

namespace shardrun {

/// One batch input of the Graph, with its global type for one micro-batch. Dim 0 counts samples.
struct BatchField {
  enum class Role { input, target };

  std::string name;
  TensorType type;
  int64_t bound = 0;  // integers lie in [0, bound); 0: not known
  Role role = Role::input;
  int64_t ignore = -100;  // a target of this value is legal though outside the bound (ignore_index)
};

struct DataOptions {
  uint64_t seed = 0;
  double validation_fraction = 0.1;     // the last part of a file; 0: no validation
  int64_t max_validation_batches = 50;  // spread evenly over the validation part
};

/// Thread-safe: reading changes nothing.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Writes the elements of `box` (global coordinates within field.type.shape) of micro-batch
  /// `batch` as a dense row-major array of field.type.dtype. Training batches are numbered 0, 1, 2,
  /// … without end; validation batches 0 … validation_batches() - 1. `field` is one of those that
  /// open_data got. Throws invalid_input naming the file, the position and the value where data do
  /// not fit the model.
  virtual void read(int64_t batch, bool validation, const BatchField& field, const Box& box,
                    void* out) const = 0;
  virtual int64_t validation_batches() const = 0;
  /// One line for people: "text:a.txt: 1115394 tokens, 1003854 to train, context 64".
  virtual std::string describe() const = 0;
};

/// `spec`:
///   ""                     synthetic: integers uniform in [0, bound), floats standard normal
///   text:FILE              bytes as tokens, vocabulary 256
///   tokens:FILE            little-endian uint16 tokens, or uint32 where the model's vocabulary is
///   beyond
///                          65536; tokens:FILE:uint16 and tokens:FILE:uint32 say which
///   npy:FILE,FILE,…        one array per field, in the order of `fields`; or NAME=FILE,NAME=FILE,…
///   npz:FILE               arrays named as the fields
///
/// Tokens: the field of role input is [samples, context] and takes context tokens from where a
/// sample starts; that of role target ([samples, context], or flat) takes those one later. An epoch
/// is all windows of `context` tokens, laid end to end from a random phase, in a shuffled order: a
/// sample comes once an epoch, and other epochs cut the text elsewhere.
///
/// Arrays: dim 0 counts samples, the rest is as the field's; an epoch is a shuffled order of the
/// samples. Arrays that all have exactly their fields' shapes are one batch, read whole each step
/// (a graph, say), without validation part.
///
/// The last validation_fraction of a file is for validation and not trained on. Throws
/// invalid_input: a file that cannot be read or is too short, a token or index beyond a field's
/// bound, fields that the source cannot fill.
std::unique_ptr<DataSource> open_data(const std::string& spec, std::vector<BatchField> fields,
                                      const DataOptions& options);

/// Tokens of one micro-batch: elements of the first integer input of rank 2 or more; 0 if there is
/// none.
int64_t tokens_per_batch(const std::vector<BatchField>& fields);

}  // namespace shardrun
