// Graph inputs and their dims.
#include "graph/onnx/model_inputs.h"

#include <set>
#include <string_view>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

const ::onnx::TypeProto_Tensor& tensor_type(const ::onnx::ValueInfoProto& input) {
  SR_REQUIRE(input.type().has_tensor_type(), unsupported, "input '", input.name(),
             "' is not a tensor (sequence, map, optional or sparse)");
  SR_REQUIRE(input.type().tensor_type().has_shape(), unsupported, "input '", input.name(),
             "' has no shape; export it with a rank and named dims");
  return input.type().tensor_type();
}

int64_t dim_size(const ::onnx::ValueInfoProto& input, int axis,
                 const std::map<std::string, int64_t>& dims) {
  const auto& dim = input.type().tensor_type().shape().dim(axis);
  const std::string name = dim_name(input, axis);
  if (name.empty()) {
    SR_REQUIRE(dim.dim_value() >= 0 && dim.dim_value() < (int64_t{1} << 48), invalid_input,
               "input '", input.name(), "': dim ", axis, " is ", dim.dim_value());
    return dim.dim_value();
  }
  const auto bound = dims.find(name);
  SR_REQUIRE(bound != dims.end(), invalid_input, "input '", input.name(), "': dim ", axis,
             " is symbolic ('", name, "'); give its size with --dim ", name, "=…",
             axis == 0 ? " or --batch" : "");
  SR_REQUIRE(bound->second > 0, invalid_input, "dim '", name, "' is bound to ", bound->second,
             ", wanted at least 1");
  return bound->second;
}

}  // namespace

std::vector<const ::onnx::ValueInfoProto*> model_inputs(const ModelFile& model) {
  std::set<std::string_view> initialisers;
  for (const StoredTensor& tensor : model.initialisers) initialisers.insert(tensor.name);
  std::vector<const ::onnx::ValueInfoProto*> out;
  for (const auto& input : model.proto.graph().input()) {
    if (initialisers.count(input.name()) == 0) out.push_back(&input);
  }
  return out;
}

std::string dim_name(const ::onnx::ValueInfoProto& input, int axis) {
  const auto& dim = input.type().tensor_type().shape().dim(axis);
  if (dim.has_dim_value()) return "";
  return dim.dim_param().empty() ? str(input.name(), ".", axis) : dim.dim_param();
}

std::map<std::string, int64_t> bind_dims(const ModelFile& model, const ImportOptions& options) {
  std::map<std::string, int64_t> dims = options.dims;
  std::set<std::string> known;
  bool batch_used = false;
  for (const auto* input : model_inputs(model)) {
    const auto& type = tensor_type(*input);
    for (int axis = 0; axis < type.shape().dim_size(); ++axis) {
      const std::string name = dim_name(*input, axis);
      if (!name.empty()) known.insert(name);
      if (!options.batch || axis != 0) continue;
      if (!name.empty()) dims.try_emplace(name, *options.batch);
      batch_used = batch_used || !name.empty() || type.shape().dim(0).dim_value() == *options.batch;
    }
  }
  for (const auto& [name, size] : options.dims) {
    std::string all;
    for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
    SR_REQUIRE(known.count(name) > 0, invalid_input, "no dim is named '", name,
               "'; symbolic dims are: ", all.empty() ? "none" : all);
  }
  SR_REQUIRE(!options.batch || batch_used, invalid_input,
             "no input has a symbolic first dim for a batch of ", *options.batch,
             "; export with a dynamic one");
  return dims;
}

TensorType input_type(const ::onnx::ValueInfoProto& input,
                      const std::map<std::string, int64_t>& dims) {
  TensorType type;
  try {
    type.dtype = graph_dtype(input.type().tensor_type().elem_type());
  } catch (const Error& e) {
    throw e.with_context(str("input '", input.name(), "'"));
  }
  for (int axis = 0; axis < input.type().tensor_type().shape().dim_size(); ++axis) {
    type.shape.push_back(dim_size(input, axis, dims));
  }
  try {
    element_count(type.shape);
  } catch (const Error& e) {
    throw e.with_context(str("input '", input.name(), "'"));
  }
  return type;
}

}  // namespace shardrun::importer
