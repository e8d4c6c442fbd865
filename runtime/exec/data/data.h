// Data sources: what fills the batch inputs of a training step.
//
// A source is a pure function of (seed, global micro-batch number, element): every rank asks only
// for its box of a batch, and the global batches are the same on any mesh.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "exec/data/token_entropy.h"

namespace shardrun {

/// One batch input of the Graph, with its global type for one micro-batch. Dim 0 counts samples.
struct BatchField {
  enum class Role { input, target };

  std::string name;
  TensorType type;
  int64_t bound = 0;  // integers lie in [0, bound); 0: not known
  /// Where a table's columns, its last dim, index different things: the bound of each, 0 where it
  /// has none. `bound` is then the least of them. Empty: `bound` holds for all.
  std::vector<int64_t> column_bounds = {};
  Role role = Role::input;
  /// Of a target of tokens: how many tokens behind the input its own begin. 1: the model compares
  /// its logits with the target as it is; 0: it shifts the target itself.
  int64_t shift = 1;
  /// A target of this value is legal though outside the bound, and left out of the loss
  /// (ignore_index). None: the loss counts every target.
  std::optional<int64_t> ignore = -100;
  bool ascends = false;  // integers begin at 0 and do not descend: where bags begin
};

/// What a batch is for. Where data say nothing of a test, it has no batches.
enum class Split { training, validation, test };

struct DataOptions {
  uint64_t seed = 0;
  double validation_fraction = 0.1;     // the last part of a file; 0: no validation
  int64_t max_validation_batches = 50;  // spread evenly over the validation part

  /// "", or a comma-separated list for images: crop=N (N pixels of black around the image, then a
  /// random part of its own size), flip (left to right, every other one on average).
  std::string augment;
  /// "", or how floating inputs are scaled:
  ///   rows       matrices: each row is divided by its sum (a row of zeros stays)
  ///   data       images: to mean 0 and deviation 1 in each channel, over the training part
  ///   M/S        images: minus M, divided by S; a number for each channel, 0.5,0.5,0.4/0.2,0.2,0.2
  std::string normalise;
  bool sort_edges = false;  // edge lists [2, edges] in the order of their targets
};

/// Thread-safe: reading changes nothing.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Writes the elements of `box` (global coordinates within field.type.shape) of micro-batch
  /// `batch` as a dense row-major array of field.type.dtype. Training batches are numbered 0, 1, 2,
  /// … without end; those of another split 0 … batches(split) - 1. `field` is one of those that
  /// open_data got. Throws invalid_input naming the file, the position and the value where data do
  /// not fit the model.
  virtual void read(int64_t batch, Split split, const BatchField& field, const Box& box,
                    void* out) const = 0;
  /// Where row `row` of a batch comes from: "a.npz: array 'x', row 7", counted from 0; "": from no
  /// row of a file.
  virtual std::string origin(int64_t /*batch*/, Split /*split*/, const BatchField& /*field*/,
                             int64_t /*row*/) const {
    return "";
  }
  /// Of validation or test.
  virtual int64_t batches(Split split) const = 0;
  /// Is every batch of a split the same?
  virtual bool same_each_step() const { return false; }
  /// One line for people: "text:a.txt: 1115394 tokens, 1003854 to train, context 64".
  virtual std::string describe() const = 0;
  /// Of a text, or of tokens of few kinds: of the first 16 MiB.
  virtual std::optional<TokenEntropy> entropy() const { return std::nullopt; }
};

/// `spec` is one of
///   ""            synthetic: integers uniform in [0, bound), floats standard normal
///   text:FILE     bytes as tokens, vocabulary 256
///   tokens:FILE   little-endian uint16 tokens, or uint32 where the vocabulary is beyond 65536;
///                 tokens:FILE:uint16 and tokens:FILE:uint32 say which
///   npy:F,F,…     one array per field, in the order of `fields`; or NAME=F,NAME=F,…
///   npz:FILE      arrays named as the fields; npz:FILE,FIELD=ARRAY,… for others. A target takes
///                 an array target, targets, labels, label or y
///   idx:I,L       images and labels in MNIST's format, gzipped or not; idx:I,L,I,L has a test part
///   cifar:FOLDER  CIFAR's binary batches, test batch included; or cifar:F,F,… for single ones;
///                 cifar100: for two labels an image, of which the second counts
///
/// Tokens: the field of role input is [samples, context] and takes context tokens from where a
/// sample starts; that of role target ([samples, context], or flat) takes those `shift` later. Of
/// further inputs [samples, context], 'attention_mask' is all ones, 'token_type_ids' zeros, and
/// 'position_ids' counts from 0. An epoch is all samples of `context` tokens, laid end to end from
/// a random phase, in a shuffled order: a sample comes once an epoch, and other epochs cut the text
/// elsewhere.
///
/// Arrays: dim 0 counts samples, the rest is as the field's ([samples, H, W] fit [batch, 1, H, W]);
/// an epoch is a shuffled order of the samples. The archive's boolean arrays train_mask, val_mask
/// and test_mask, where they are, say which samples are for what, else the last validation_fraction
/// is for validation. Validation and test see every sample once: where the last batch has samples
/// left, its targets there are the ignored label.
///
/// Arrays that all have exactly their fields' shapes are one batch, read whole each step (a graph,
/// say); with masks, the targets outside the split's mask are the ignored label. Such a batch has
/// two forms of a graph: a field 'adjacency' [nodes, nodes] without an array is made from the array
/// edge_index [2, edges] of sources and targets.
///
/// The last validation_fraction of a file is for validation and not trained on. Throws
/// invalid_input: a file that cannot be read or is too short, a token or index beyond a field's
/// bound, fields that the source cannot fill.
std::unique_ptr<DataSource> open_data(const std::string& spec, std::vector<BatchField> fields,
                                      const DataOptions& options);

/// target, targets, labels, label, y: what targets are called.
bool is_named_as_target(const std::string& field);

/// The files that `spec` names. A folder is one.
std::vector<std::string> files_of_data(const std::string& spec);

/// The shapes that the arrays of `spec` have, by name of the model's input, for inputs that it
/// names: what symbolic dims can be bound with. `whole`: the arrays are one batch, dim 0 included,
/// because they come with masks. Empty for text, tokens and synthetic batches. Throws as open_data
/// does.
struct DataShapes {
  std::map<std::string, Shape> of;
  bool whole = false;
};
DataShapes data_shapes(const std::string& spec, const std::vector<std::string>& inputs);

/// The integers of the array for `input`, as i64, if `spec` is an archive whose arrays are the same
/// in every step: it has masks, or those for the model's `inputs` differ in their first dim and so
/// do not count samples (a graph's [nodes, features] and [2, edges]). `sort_edges`: as in
/// DataOptions; what else is in the edges' order then is not known.
std::optional<Tensor> data_contents(const std::string& spec, const std::string& input,
                                    const std::vector<std::string>& inputs, bool sort_edges);

/// Tokens of one micro-batch: elements of the first integer input of rank 2 or more that indexes a
/// table, or has a target for each element. 0 if there is none, or targets are for other than its
/// rows (the edge list of a graph).
int64_t tokens_per_batch(const std::vector<BatchField>& fields);

}  // namespace shardrun
