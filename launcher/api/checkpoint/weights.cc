#include "checkpoint/weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/reader.h"
#include "exec/safetensors_folder.h"
#include "graph/optimizer.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

/// Files of weights by their paths, each opened once.
using Files = std::map<std::string, std::shared_ptr<const InputFile>>;

Source in_file(Files& files, const std::string& path, int64_t offset, const TensorType& type) {
  std::shared_ptr<const InputFile>& file = files[path];
  if (!file) file = std::make_shared<const InputFile>(path, "a file of weights");
  Source out;
  out.kind = Source::Kind::file;
  out.file = file;
  out.offset = offset;
  out.dtype = type.dtype;
  out.shape = type.shape;
  return out;
}

void add_safetensors(const std::string& path, GivenWeights& to) {
  Files files;
  for (const auto& [name, found] : find_tensors(path)) {
    GivenWeights::Tensor& tensor = to.tensors[name];
    tensor = {found.entry.shape, found.entry.dtype, std::nullopt};
    std::optional<TensorType> type;
    try {
      type = found.entry.type();
    } catch (const Error&) {  // one that we do not read, which matters if it is wanted
    }
    if (type) tensor.source = in_file(files, found.path, found.entry.begin, *type);
  }
}

/// Its values under their names, but for the optimizer's state.
void add_checkpoint(const std::string& path, bool verified, GivenWeights& to) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const Manifest& manifest = checkpoint.manifest();
  const auto is_weight = [&](const std::string& name) {
    return manifest.find(parameter_of_state(name)) == nullptr;
  };
  if (verified) checkpoint.verify(is_weight);
  to.complete = false;
  Files files;
  for (const auto& [value, pieces] : manifest.tensors) {
    if (!is_weight(value.name)) continue;
    Source whole;
    whole.kind = Source::Kind::parts;
    for (const Manifest::Piece& piece : pieces) {
      const std::string file = (fs::path(path) / manifest.files[piece.file].name).string();
      whole.parts.push_back({piece.box, in_file(files, file, piece.offset,
                                                {value.type.dtype, box_shape(piece.box)})});
    }
    to.tensors[value.name] = {value.type.shape, str(value.type.dtype), std::move(whole)};
  }
}

/// What its module calls the weights; what only the file has a name for, by that.
void add_model(const std::string& path, GivenWeights& to) {
  const WeightMap map = OnnxFile(path).map_weights({});
  const auto add = [&](const std::string& name, const WeightMap::Value& value, const Shape& shape,
                       bool turned) {
    const Source::Kind kind = value.source.kind;
    SR_REQUIRE(kind == Source::Kind::file || kind == Source::Kind::data, invalid_input,
               "only describes its weights (--no-weights), such as '", name,
               "'; give a file that has them");
    to.tensors.try_emplace(name,
                           GivenWeights::Tensor{shape, str(value.type.dtype),
                                                turned ? transposed(value.source) : value.source});
  };
  std::set<std::string> named;
  for (const ModuleTensor& tensor : map.tensors) {
    for (const ValueRun& run : tensor.runs) named.insert(run.value);
    const WeightMap::Value& value = map.values.at(tensor.runs[0].value);
    if (tensor.runs[0].count == element_count(value.type.shape))
      add(tensor.name, value, tensor.type.shape, tensor.runs[0].transposed);
  }
  for (const auto& [name, value] : map.values) {
    if (value.kept && named.count(name) == 0) add(name, value, value.type.shape, false);
  }
}

bool is_checkpoint(const std::string& path) { return fs::exists(fs::path(path) / Manifest::kFile); }

}  // namespace

std::string weights_meant(const std::string& path) {
  const std::string checkpoint = checkpoint_meant(path);
  return checkpoint.empty() ? path : checkpoint;
}

GivenWeights find_weights(const std::string& path, const std::vector<std::string>& except,
                          bool verified) {
  GivenWeights out;
  out.origin = "--weights " + path;
  out.except = except;
  try {
    SR_REQUIRE(fs::exists(path), invalid_input, "no such file or folder");
    if (is_checkpoint(path)) {
      add_checkpoint(path, verified, out);
    } else if (path.ends_with(".onnx")) {
      add_model(path, out);
    } else {
      add_safetensors(path, out);
    }
  } catch (const Error& e) {
    throw e.with_context(out.origin);
  }
  return out;
}

std::vector<std::string> files_of_weights(const std::string& path) {
  if (path.ends_with(".onnx")) return files_of_model(OnnxFile(path));
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.is_regular_file(ignored)) out.push_back(entry.path().string());
  }
  return out;
}

}  // namespace shardrun
