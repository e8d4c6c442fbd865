// The kinds of source that open_data chooses from.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named.h"
#include "exec/data/data_files.h"
#include "exec/data/data_split.h"

namespace shardrun {

enum class DataKind { text, tokens, npy, npz, idx, cifar, cifar100 };
inline constexpr Named<DataKind> kDataKinds[] = {
    {"text", DataKind::text},        {"tokens", DataKind::tokens}, {"npy", DataKind::npy},
    {"npz", DataKind::npz},          {"idx", DataKind::idx},       {"cifar", DataKind::cifar},
    {"cifar100", DataKind::cifar100}};

/// "npz:FILE" and its parts.
struct DataSpec {
  std::string text;
  DataKind kind;
  std::string rest;  // behind the colon
};
/// nullopt: no such kind, or nothing behind the colon.
std::optional<DataSpec> parse_data(const std::string& text);

std::unique_ptr<DataSource> open_tokens(const std::string& spec, const std::string& path,
                                        int token_bytes, std::vector<BatchField> fields,
                                        const DataOptions& options);

/// Random numbers. Throws invalid_input where the range of an integer field is not known.
std::unique_ptr<DataSource> make_synthetic_source(const std::vector<BatchField>& fields,
                                                  const DataOptions& options);

/// What an array data set holds.
struct ArrayData {
  std::string spec;
  std::vector<Samples> arrays;  // one a field, in their order; empty: made from `edges`
  int64_t test = 0;             // the last samples are a test part
  std::optional<std::array<std::vector<int64_t>, 3>> masks;  // the samples of each split
  std::optional<StoredArray> edges;                          // [2, edges], for 'adjacency'
  bool images = false;  // bytes are pixels from 0 to 1, whatever the options say
};

/// A shuffled order of samples.
std::unique_ptr<DataSource> make_sample_source(ArrayData data, std::vector<BatchField> fields,
                                               const DataOptions& options);
/// All arrays are as large as their fields: one batch, read whole.
std::unique_ptr<DataSource> make_whole_source(ArrayData data, std::vector<BatchField> fields,
                                              const DataOptions& options);

/// What to do with an array that holds labels one-hot where the field takes classes; else "".
std::string one_hot_advice(const BatchField& field, const Shape& array);

/// Is it an integer input [2, edges]?
bool is_edge_list(const BatchField& field);
/// Does the input have a row for each edge? By its name: edge_weight, edge_type.
bool belongs_to_edges(const std::string& input);
/// The columns of an edge list [2, edges] by target, those of one target as they stood.
std::vector<int64_t> order_of_targets(const StoredArray& edges);

/// All but text: and tokens:.
std::unique_ptr<DataSource> open_arrays(const DataSpec& spec, std::vector<BatchField> fields,
                                        const DataOptions& options);

}  // namespace shardrun
