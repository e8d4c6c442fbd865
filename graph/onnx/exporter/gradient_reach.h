// Gradient reach: the names of a model that the gradient of its loss reaches.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// Operands that say what an operator does, such as the scales of a Resize, and are no numbers that
/// it computes with: import has to know them.
bool is_setting(const ::onnx::NodeProto& node, int i);

/// A Clip's bound that the gradient may reach: one that is computed, be it cast to the operand's
/// type. One that is stored is a number.
bool is_learnable_bound(const ::onnx::NodeProto& node, int i, bool is_computed);

/// Is the node a Tensor.detach()? PyTorch's newer exporter writes an Identity, and keeps the call.
bool is_detach(const ::onnx::NodeProto& node);

/// Names that the gradient of the output `loss` reaches. It ends at the names in `ends`.
std::set<std::string> reached_names(const std::vector<FlatNode>& nodes, const std::string& loss,
                                    const std::set<std::string>& ends);

/// "Round 'enc/Round'": the nodes that a gradient reaches and that pass none on to what depends on
/// `names`.
std::vector<std::string> gradient_stops(const std::vector<FlatNode>& nodes,
                                        const std::set<std::string>& reached,
                                        const std::vector<std::string>& names);

/// Values that come out of a region of torch.no_grad(), torch.set_grad_enabled() or
/// torch.autocast(), and through which a gradient that reaches `reached` goes on to one of `names`.
/// PyTorch's newer exporter writes a region's nodes among the others, and which kind of region it
/// was is lost. Their stack trace is in the region's own graph: 'File "<eval_with_key>.3", line 5'.
std::vector<std::string> region_results(const std::vector<FlatNode>& nodes,
                                        const std::set<std::string>& reached,
                                        const std::vector<std::string>& names);

}  // namespace shardrun::importer
