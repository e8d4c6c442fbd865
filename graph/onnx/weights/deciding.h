// Deciding: what the steps of decide_weights share: what the export says of its initialisers, what
// nodes do with them, and the weights so far.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/onnx/weights/weights.h"

namespace shardrun::importer {

/// What an export says of its initialisers, by name.
struct WeightMetadata {
  std::map<std::string, std::string> kinds;   // PARAMETER, BUFFER or CONSTANT_TENSOR
  std::map<std::string, std::string> folded;  // what the exporter computed it from: "['h.weight']"
  bool is_signed = false;                     // kinds has all that the module owns
  bool optimised = false;                     // by PyTorch's exporter
  bool from_tf2onnx = false;
};

using Use = std::pair<size_t, int>;  // node, which of its inputs

struct Deciding {
  const ModelFile& model;
  const RestoredWeights& restored;
  const std::map<std::string, std::string>& tied;
  std::vector<FlatNode>& nodes;
  const std::string& loss;
  const ImportOptions& options;
  NamePatterns& patterns;
  ImportReport& report;
  WeightMetadata said = {};
  Weights out = {};
  std::map<std::string, std::vector<Use>> readers = {};
  std::map<std::string, size_t> makers = {};  // the node that makes a value
  std::set<std::string> made = {};            // by nodes, and what the graph is given
  std::set<std::string> statistics = {};      // running ones
  std::vector<std::string> unsure = {};  // trained, though nothing says that they are parameters
  std::vector<std::string> single = {};  // single numbers that are not trained

  void read_metadata();
  void add(const std::string& name, const StoredTensor& tensor);
  /// Fills readers and makers.
  void find_uses();
  bool is_initialiser(const std::string& name) const { return out.by_name.count(name) > 0; }
  /// What the initialisers that the exporter folded into this one were called.
  std::vector<std::string> own_sources(const std::string& name) const;
  /// What a tensor is called, its own name first.
  std::vector<std::string> names_of(const std::string& name) const;
};

/// "initialiser 'w' (f32[4, 3])", as errors begin.
std::string shown(const std::string& name, const StoredTensor& tensor);

/// Where the numbers of an initialiser arrive, moved or converted on the way. One that is repeated
/// (Expand) is another tensor: PyTorch's newer exporter writes zeros so where a convolution has no
/// bias.
std::vector<Use> final_uses(const Deciding& d, const std::string& name);

/// What a layer computes from a weight: x W, a convolution.
bool is_product_with_weight(const Deciding& d, const std::string& name);

/// Does a layer keep its weight, bias or scale in one of these uses?
bool is_learned_operand(const Deciding& d, const std::vector<Use>& uses,
                        const StoredTensor& tensor);

/// What a use says of a number that nobody trains; empty if it says nothing.
const char* fixed_as(const Deciding& d, const Use& use);

/// What a batch normalisation reads there: fresh scales and variances are all ones, fresh biases
/// and means all zeros, so that weights and running statistics can have been merged.
std::string kind_in_batch_norm(const Deciding& d, const Use& use);

/// Is a bias added to what a layer computes from a weight?
bool has_bias(const Deciding& d, const ::onnx::NodeProto& product);

}  // namespace shardrun::importer
