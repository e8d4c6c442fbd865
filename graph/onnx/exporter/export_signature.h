// What PyTorch's exporter writes of a module's tensors into metadata.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// Of a value: the list of those that an optimiser computed it from, and did away with.
inline constexpr const char* kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";

/// The names in "['a', 'b.weight']".
std::vector<std::string> quoted_names(const std::string& list);

/// What an export says of the tensors that a module owns. Both forms in which PyTorch has written
/// it are read: "p_w: PARAMETER target='w'", a line for each, and
/// "InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), target='w', …)".
struct ExportSignature {
  /// A tensor that forward() changes: "add: BUFFER_MUTATION target='ema'".
  struct Mutation {
    std::string tensor;  // ema
    std::string value;   // add: what it becomes, as the exporter first called it
  };
  std::map<std::string, std::string> kinds;         // PARAMETER, BUFFER or CONSTANT_TENSOR, by name
  std::set<std::string> not_persistent;             // buffers that state_dict() leaves out
  std::map<std::string, std::string> placeholders;  // "p_w" -> "w": what calls name it
  std::vector<Mutation> mutations;
};
ExportSignature read_signature(const std::string& text);
/// The one in the graph's metadata; empty where there is none.
ExportSignature signature_of(const ::onnx::GraphProto& graph);

/// What the metadata of inputs, outputs and values say under `key`, by name.
std::map<std::string, std::string> value_metadata(const ::onnx::GraphProto& graph,
                                                  const std::string& key);

}  // namespace shardrun::importer
