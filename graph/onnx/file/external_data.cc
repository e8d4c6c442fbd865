// Which files external data may be in, and which a model names.
#include "graph/onnx/file/external_data.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace shardrun::importer {
namespace {

void add_locations(const ::onnx::TensorProto& tensor, std::set<std::string>& to) {
  if (tensor.data_location() != ::onnx::TensorProto::EXTERNAL) return;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") to.insert(entry.value());
  }
}

void add_locations(const ::onnx::GraphProto& graph, std::set<std::string>& to);

template <class Nodes>
void add_locations_of_nodes(const Nodes& nodes, std::set<std::string>& to) {
  for (const auto& node : nodes) {
    for (const auto& attribute : node.attribute()) {
      add_locations(attribute.t(), to);
      add_locations(attribute.g(), to);
      for (const auto& tensor : attribute.tensors()) add_locations(tensor, to);
      for (const auto& graph : attribute.graphs()) add_locations(graph, to);
    }
  }
}

void add_locations(const ::onnx::GraphProto& graph, std::set<std::string>& to) {
  for (const auto& tensor : graph.initializer()) add_locations(tensor, to);
  add_locations_of_nodes(graph.node(), to);
}

}  // namespace

std::string resolve_location(const std::string& location, const std::string& folder) {
  namespace fs = std::filesystem;
  SR_REQUIRE(!location.empty(), invalid_input, "external data has no location");
  SR_REQUIRE(location.find('\0') == std::string::npos, invalid_input,
             "external data: location holds a NUL");
  const fs::path relative(location);
  SR_REQUIRE(!relative.is_absolute() && location[0] != '\\', invalid_input,
             "external data: location '", location,
             "' is absolute, wanted a path below the model's folder");
  for (const fs::path& part : relative) {
    SR_REQUIRE(part != "..", invalid_input, "external data: location '", location,
               "' leaves the model's folder by '..'");
  }
  std::error_code ec;
  const fs::path root = fs::canonical(folder.empty() ? fs::path(".") : fs::path(folder), ec);
  SR_REQUIRE(!ec, invalid_input, "cannot resolve folder '", folder, "': ", ec.message());
  const fs::path file = fs::canonical(root / relative, ec);
  SR_REQUIRE(!ec, invalid_input, "external data: cannot find '", location,
             "' next to the model: ", ec.message());
  const auto [in_root, in_file] = std::mismatch(root.begin(), root.end(), file.begin(), file.end());
  SR_REQUIRE(in_root == root.end(), invalid_input, "external data: location '", location,
             "' is a link that leaves the model's folder");
  SR_REQUIRE(fs::is_regular_file(file, ec), invalid_input, "external data: '", location,
             "' is not a regular file");
  return file.string();
}

const std::shared_ptr<const InputFile>& ExternalData::file(const std::string& location) {
  std::shared_ptr<const InputFile>& file = files_[location];
  if (!file) file = std::make_shared<const InputFile>(resolve_location(location, folder_));
  return file;
}

std::set<std::string> external_locations(const ::onnx::ModelProto& model) {
  std::set<std::string> out;
  add_locations(model.graph(), out);
  for (const auto& function : model.functions()) add_locations_of_nodes(function.node(), out);
  return out;
}

}  // namespace shardrun::importer
