#include "exec/safetensors_folder.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files/input_file.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kEnding = ".safetensors", kIndexEnding = ".safetensors.index.json";
constexpr int64_t kMostIndex = 100'000'000;  // bytes

void add_all(const std::string& path, std::map<std::string, FoundTensor>& to) {
  for (const SafetensorsEntry& entry : read_safetensors_header(path).tensors) {
    const auto [it, fresh] = to.try_emplace(entry.name, FoundTensor{path, entry});
    SR_REQUIRE(fresh, invalid_input, path, ": tensor '", entry.name, "' is in ", it->second.path,
               ", too, and no index says which one counts");
  }
}

std::map<std::string, FoundTensor> of_index(const std::string& path) {
  const Json index =
      parse_json<Json>(read_input_file(path, "an index of safetensors files", kMostIndex), path,
                       "an index of safetensors files");
  const auto names = index.is_object() ? index.find("weight_map") : index.end();
  SR_REQUIRE(index.is_object() && names != index.end() && names->is_object(), invalid_input, path,
             ": has no weight_map, which names the file of each tensor");
  std::map<std::string, SafetensorsHeader> headers;
  std::map<std::string, FoundTensor> out;
  for (const auto& [name, value] : names->items()) {
    SR_REQUIRE(value.is_string(), invalid_input, path, ": weight_map '", name, "' is ",
               value.type_name(), ", wanted the name of a file");
    const auto file = value.get<std::string>();
    SR_REQUIRE(!file.empty() && file == fs::path(file).filename().string() && file != "..",
               invalid_input, path, ": weight_map '", name, "' is '", file,
               "', wanted a file next to the index");
    const std::string file_path = (fs::path(path).parent_path() / file).string();
    auto header = headers.find(file_path);
    if (header == headers.end())
      header = headers.emplace(file_path, read_safetensors_header(file_path)).first;
    const SafetensorsEntry* entry = header->second.find(name);
    SR_REQUIRE(entry != nullptr, invalid_input, path, ": weight_map has tensor '", name, "' in ",
               file, ", which does not have it");
    out[name] = {file_path, *entry};
  }
  return out;
}

std::vector<std::string> files_ending(const std::string& folder, std::string_view ending) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().ends_with(ending)) out.push_back(entry.path().string());
  }
  SR_REQUIRE(!error, invalid_input, folder, ": cannot be read: ", error.message());
  std::sort(out.begin(), out.end());
  return out;
}

std::map<std::string, FoundTensor> of_folder(const std::string& folder) {
  const std::string single = (fs::path(folder) / kSingle).string();
  std::map<std::string, FoundTensor> out;
  if (fs::exists(single)) {
    add_all(single, out);
    return out;
  }
  const std::vector<std::string> indices = files_ending(folder, kIndexEnding);
  SR_REQUIRE(indices.size() <= 1, invalid_input, folder, ": holds ", indices.size(),
             " indices of safetensors files; name the one that is meant");
  if (!indices.empty()) return of_index(indices[0]);
  const std::vector<std::string> files = files_ending(folder, kEnding);
  SR_REQUIRE(!files.empty(), invalid_input, folder, ": holds no safetensors files",
             files_ending(folder, ".bin").empty() && files_ending(folder, ".pth").empty()
                 ? ""
                 : ", only PyTorch's pickled ones, which run code when they are read; save them "
                   "with safetensors.torch.save_file, or save_pretrained");
  for (const std::string& file : files) add_all(file, out);
  return out;
}

std::string numbered(size_t file, size_t files) {
  const auto digits = [](size_t number) {
    std::string text = std::to_string(number);
    return text.size() < 5 ? std::string(5 - text.size(), '0') + text : text;
  };
  return "model-" + digits(file) + "-of-" + digits(files) + ".safetensors";
}

}  // namespace

std::map<std::string, FoundTensor> find_tensors(const std::string& path) {
  if (fs::is_directory(path)) return of_folder(path);
  if (path.ends_with(".json")) return of_index(path);
  std::map<std::string, FoundTensor> out;
  add_all(path, out);
  return out;
}

SafetensorsFolder::SafetensorsFolder(std::string path, std::vector<SafetensorsTensor> tensors,
                                     std::map<std::string, std::string> metadata,
                                     int64_t file_bytes)
    : path_(std::move(path)), tensors_(std::move(tensors)), metadata_(std::move(metadata)) {
  std::vector<size_t> ends;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t more = byte_size(tensors_[i].type);
    if (bytes > 0 && bytes + more > file_bytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  ends.push_back(tensors_.size());
  for (size_t f = 0; f < ends.size(); ++f) {
    const std::string name = ends.size() == 1 ? kSingle : numbered(f + 1, ends.size());
    files_.push_back({(fs::path(path_) / name).string(), f == 0 ? 0 : ends[f - 1], ends[f]});
  }
  SR_REQUIRE(!fs::exists(path_) || fs::is_directory(path_), invalid_input, path_,
             ": is a file, wanted a folder");
  if (!fs::exists(path_)) return;
  std::set<std::string> own;
  for (const std::string& file : files()) own.insert(file);
  for (const std::string_view ending : {kEnding, kIndexEnding}) {
    for (const std::string& other : files_ending(path_, ending)) {
      SR_REQUIRE(own.count(other) > 0, invalid_input, path_, ": holds ",
                 fs::path(other).filename().string(),
                 ", which would be read with or instead of what is written; remove it, or name "
                 "another folder");
    }
  }
}

std::vector<std::string> SafetensorsFolder::files() const {
  std::vector<std::string> out;
  for (const File& file : files_) out.push_back(file.path);
  if (files_.size() > 1) out.push_back((fs::path(path_) / kIndex).string());
  return out;
}

void SafetensorsFolder::write(
    const std::function<void(size_t tensor, SafetensorsWriter& file)>& write_tensor) const {
  std::error_code error;
  fs::create_directories(path_, error);
  SR_REQUIRE(!error, invalid_input, path_, ": cannot be made: ", error.message());
  int64_t total = 0;
  Json names = Json::object();
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  for (const File& file : files_) {
    const auto at = [&](size_t tensor) {
      return tensors_.begin() + static_cast<std::ptrdiff_t>(tensor);
    };
    writers.push_back(std::make_unique<SafetensorsWriter>(
        file.path, std::vector(at(file.begin), at(file.end)), metadata_));
    for (size_t t = file.begin; t < file.end; ++t) {
      write_tensor(t, *writers.back());
      total += byte_size(tensors_[t].type);
      names[tensors_[t].name] = fs::path(file.path).filename().string();
    }
  }
  for (const auto& writer : writers) writer->finish();
  if (files_.size() == 1) return;
  OutputFile index((fs::path(path_) / kIndex).string());
  index.stream() << Json{{"metadata", {{"total_size", total}}}, {"weight_map", names}}.dump(2)
                 << '\n';
  index.finish();
}

}  // namespace shardrun
