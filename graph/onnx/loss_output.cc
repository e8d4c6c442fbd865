#include "graph/onnx/loss_output.h"

#include <algorithm>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/file/model_file.h"

namespace shardrun::importer {
namespace {

/// By its declared type: f32[] or f32[1].
bool is_scalar(const ::onnx::ValueInfoProto& output) {
  if (!output.type().has_tensor_type()) return false;
  const auto& type = output.type().tensor_type();
  if (!type.has_shape() || !is_floating_onnx_type(type.elem_type())) return false;
  return type.shape().dim_size() == 0 ||
         (type.shape().dim_size() == 1 && type.shape().dim(0).dim_value() == 1);
}

/// 'loss', 'out.loss', 'output/loss'.
bool is_called_loss(const std::string& name) {
  const size_t last = name.find_last_of("./:");
  return name.substr(last == std::string::npos ? 0 : last + 1) == "loss";
}

/// What is computed from the model's inputs, and is not what a tensor of the module becomes.
std::set<std::string> computed_from_inputs(const ::onnx::GraphProto& graph,
                                           const std::vector<FlatNode>& nodes) {
  std::set<std::string> out, kept;
  for (const auto& input : graph.input()) out.insert(input.name());
  for (const auto& [name, kind] :
       value_metadata(graph, "pkg.torch.export.graph_signature.OutputSpec.kind")) {
    if (kind.ends_with("_MUTATION")) kept.insert(name);
  }
  for (const FlatNode& node : nodes) {
    const std::vector<std::string> read = names_read(node.proto);
    const auto any = [&](const std::set<std::string>& in) {
      return std::any_of(read.begin(), read.end(), [&](const auto& n) { return in.count(n) > 0; });
    };
    const auto& made = node.proto.output();
    if (node.proto.op_type() == "Identity" && any(kept)) kept.insert(made.begin(), made.end());
    if (any(out)) out.insert(made.begin(), made.end());
  }
  for (const std::string& name : kept) out.erase(name);
  return out;
}

}  // namespace

LossOutput find_loss_output(const ::onnx::GraphProto& graph, const std::vector<FlatNode>& nodes,
                            const ImportOptions& options) {
  std::vector<std::string> all, scalars, called;
  for (const auto& output : graph.output()) {
    all.push_back(output.name());
    if (is_scalar(output)) scalars.push_back(output.name());
  }
  if (!options.loss_output.empty()) {
    SR_REQUIRE(std::find(all.begin(), all.end(), options.loss_output) != all.end(), invalid_input,
               "--loss-output '", options.loss_output, "': the model has no such output; it has ",
               listed(all));
    return {options.loss_output, true, ""};
  }
  if (!options.has_own_loss || scalars.empty()) return {all[0], false, ""};
  const bool is_first = scalars[0] == all[0];
  if (is_first && scalars.size() == 1) return {all[0], true, ""};
  const std::set<std::string> computed = computed_from_inputs(graph, nodes);
  std::erase_if(scalars, [&](const std::string& name) {
    return computed.count(name) == 0 && !(is_first && name == all[0]);
  });
  if (is_first) {
    return {all[0], true,
            scalars.size() > 1 ? str("loss: the first output '", all[0],
                                     "'; other scalars are left alone (--loss-output takes one)")
                               : ""};
  }
  if (scalars.empty()) return {all[0], false, ""};
  if (scalars.size() == 1) {
    return {scalars[0], true,
            str("loss: output '", scalars[0], "', the only scalar of ", all.size(), " outputs")};
  }
  std::copy_if(scalars.begin(), scalars.end(), std::back_inserter(called), is_called_loss);
  SR_REQUIRE(called.size() == 1, invalid_input, "outputs ", listed(scalars),
             " are scalars; say which is the loss with --loss-output NAME, or compute one on the "
             "first output with --loss");
  return {called[0], true,
          str("loss: output '", called[0], "', one of ", scalars.size(), " scalars, by its name")};
}

}  // namespace shardrun::importer
