// OnnxFile, and what is asked of a file alone: its inputs, its files, its weights.
#include <filesystem>
#include <fstream>

#include "graph/onnx/import.h"
#include "graph/onnx/import_model.h"
#include "graph/onnx/model_inputs.h"

namespace shardrun {
namespace {

std::vector<DeclaredInput> declared_inputs_of(const importer::ModelFile& model) {
  std::vector<DeclaredInput> out;
  for (const auto* input : importer::model_inputs(model)) {
    if (!input->type().has_tensor_type() || !input->type().tensor_type().has_shape()) continue;
    DeclaredInput& declared = out.emplace_back();
    declared.name = input->name();
    const auto& shape = input->type().tensor_type().shape();
    for (int axis = 0; axis < shape.dim_size(); ++axis)
      declared.dims.push_back({importer::dim_name(*input, axis), shape.dim(axis).dim_value()});
  }
  return out;
}

}  // namespace

OnnxFile::OnnxFile(const std::string& path)
    : model_(std::make_unique<importer::ModelFile>(importer::open_model(path))) {}
OnnxFile::~OnnxFile() = default;
OnnxFile::OnnxFile(OnnxFile&&) noexcept = default;

const std::string& OnnxFile::path() const { return model_->path; }

std::vector<SymbolicDim> OnnxFile::symbolic_dims() const {
  std::vector<SymbolicDim> out;
  for (const DeclaredInput& input : declared_inputs_of(*model_)) {
    for (size_t axis = 0; axis < input.dims.size(); ++axis) {
      const std::string& name = input.dims[axis].symbol;
      if (!name.empty()) out.push_back({name, input.name, static_cast<int64_t>(axis)});
    }
  }
  return out;
}

Graph OnnxFile::import(const ImportOptions& options, ImportReport* report) && {
  ImportReport unread;
  const std::unique_ptr<importer::ModelFile> model = std::move(model_);  // gone with this call
  try {
    return importer::import_model(*model, options, report != nullptr ? *report : unread);
  } catch (const Error& e) {
    throw e.with_context(model->path);
  }
}

Graph import_onnx(const std::string& path, const ImportOptions& options, ImportReport* report) {
  return OnnxFile(path).import(options, report);
}

WeightMap map_weights(const std::string& path, const ImportOptions& options) {
  importer::ModelFile model = importer::open_model(path);
  try {
    return importer::map_model(model, options);
  } catch (const Error& e) {
    throw e.with_context(path);
  }
}

std::vector<DeclaredInput> declared_inputs(const std::string& path) {
  return declared_inputs_of(importer::open_model(path));
}

std::vector<SymbolicDim> symbolic_dims(const std::string& path) {
  return OnnxFile(path).symbolic_dims();
}

std::vector<std::string> files_of_model(const std::string& path) {
  std::vector<std::string> out = importer::external_files(path);
  out.insert(out.begin(), path);
  return out;
}

Tensor read_onnx_tensor(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  SR_REQUIRE(in.good(), invalid_input, "cannot open '", path, "'");
  ::onnx::TensorProto proto;
  SR_REQUIRE(proto.ParseFromIstream(&in), invalid_input, path, ": is not a TensorProto");
  importer::ImportBudget budget(static_cast<int64_t>(std::filesystem::file_size(path)));
  return importer::store_tensor(proto, "", budget).data;
}

}  // namespace shardrun
