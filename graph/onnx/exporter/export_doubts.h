// What an export of PyTorch's does not tell, but shows signs of: custom gradients, copies that were
// not trained, buffers and detached values among what the older exporter writes; and where
// PyTorch's own numbers are others for want of rounding or of an order.
#pragma once

#include "graph/onnx/flatten.h"
#include "graph/onnx/import.h"
#include "graph/onnx/weights/weights.h"

namespace shardrun::importer {

/// A note for each kind, with the way out. Throws unsupported for an as_strided() of a view, which
/// the newer exporter writes wrongly. `unsure`: what trains though it need not be a parameter.
std::vector<std::string> export_doubts(const ModelFile& model, const std::vector<FlatNode>& nodes,
                                       const Weights& weights,
                                       const std::vector<std::string>& unsure);

/// Is a tensor called like one that a layer of PyTorch's own keeps and trains, "weight_ih_l0" say?
bool named_like_a_layers(const std::string& name);

/// The custom torch.autograd.Functions whose forward() made a node, by the stack trace in its
/// metadata.
struct CustomFunctions {
  std::set<std::string> applied;  // "Round.apply"
  /// "h = f(h)", the call of a forward() that is no module's of the model and of no installed
  /// package: mostly of a function under another name, f = Round.apply, or of a module that
  /// forward() made. "": none.
  std::string call;
};
CustomFunctions custom_functions(const ::onnx::NodeProto& node);

}  // namespace shardrun::importer
