// OnnxFile.
#include "graph/onnx/onnx_file.h"

#include <filesystem>
#include <optional>
#include <utility>

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

/// `f`'s result; errors get the file's name.
template <class F>
auto naming(const std::string& path, F f) {
  try {
    return f();
  } catch (const Error& e) {
    throw e.with_context(path);
  }
}

}  // namespace

struct OnnxFile::State {
  /// What is known of a file once it has been parsed.
  struct Listed {
    std::vector<std::string> external_files;
    std::map<std::string, std::string> metadata;
  };

  explicit State(const std::string& of)
      : path(of),
        folder(std::filesystem::path(of).parent_path()),
        external(std::make_shared<importer::ExternalData>(folder.string())) {}

  const std::shared_ptr<const InputFile>& open() {
    if (!file) file = std::make_shared<const InputFile>(path, "an ONNX model");
    return file;
  }

  importer::ModelFile& parse() {
    if (model) return *model;
    model.emplace(naming(path, [&] { return importer::parse_model(file, external); }));
    Listed& list = listed.emplace();
    for (const std::string& location : importer::external_locations(model->proto))
      list.external_files.push_back((folder / location).string());
    for (const auto& entry : model->proto.metadata_props()) {
      if (entry.key().starts_with("shardrun.")) list.metadata[entry.key()] = entry.value();
    }
    return *model;
  }

  /// Empty for what is no model: import says what is wrong with it.
  const Listed& lists() {
    static const Listed none;
    if (listed) return *listed;
    try {
      open();
      parse();
    } catch (const Error&) {
      return none;
    }
    return *listed;
  }

  importer::ModelFile& check() {
    open();
    importer::ModelFile& parsed = parse();
    if (parsed.checked) return parsed;
    try {
      naming(path, [&] { importer::check_model(parsed); });
    } catch (const Error&) {
      model.reset();
      throw;
    }
    inputs = declared_inputs_of(parsed);
    return parsed;
  }

  /// The model, which then is the caller's.
  importer::ModelFile take() {
    importer::ModelFile out = std::move(check());
    model.reset();
    return out;
  }

  const std::string path;
  const std::filesystem::path folder;
  std::shared_ptr<const InputFile> file;
  std::shared_ptr<importer::ExternalData> external;
  std::optional<Listed> listed;
  std::optional<importer::ModelFile> model;
  std::optional<std::vector<DeclaredInput>> inputs;
};

OnnxFile::OnnxFile(const std::string& path) : state_(std::make_shared<State>(path)) {}

const std::string& OnnxFile::path() const { return state_->path; }
const InputFile& OnnxFile::file() const { return *state_->open(); }
const std::vector<std::string>& OnnxFile::external_files() const {
  return state_->lists().external_files;
}
const std::map<std::string, std::string>& OnnxFile::metadata() const {
  state_->open();
  return state_->lists().metadata;
}

const std::vector<DeclaredInput>& OnnxFile::declared_inputs() const {
  if (!state_->inputs) state_->check();
  return *state_->inputs;
}

std::vector<SymbolicDim> OnnxFile::symbolic_dims() const {
  std::vector<SymbolicDim> out;
  for (const DeclaredInput& input : declared_inputs()) {
    for (size_t axis = 0; axis < input.dims.size(); ++axis) {
      const std::string& name = input.dims[axis].symbol;
      if (!name.empty()) out.push_back({name, input.name, static_cast<int64_t>(axis)});
    }
  }
  return out;
}

Graph OnnxFile::import(const ImportOptions& options, ImportReport* report) const {
  ImportReport unread;
  importer::ModelFile model = state_->take();
  return naming(path(), [&] {
    return importer::import_model(model, options, report != nullptr ? *report : unread);
  });
}

WeightMap OnnxFile::map_weights(const ImportOptions& options) const {
  importer::ModelFile model = state_->take();
  return naming(path(), [&] { return importer::map_model(model, options); });
}

std::vector<std::string> files_of_model(const OnnxFile& file) {
  std::vector<std::string> out = file.external_files();
  out.insert(out.begin(), file.path());
  return out;
}

}  // namespace shardrun
