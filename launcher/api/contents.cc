// Blocks of files, hashed.
#include "contents.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/philox.h"
#include "exec/data/data.h"
#include "graph/onnx/file/file_layout.h"

namespace shardrun {
namespace {

constexpr int64_t kBlock = 4096, kBlocksOfATensor = 8, kBlocksOfAFile = 64;
constexpr size_t kMostFiles = 64;

class Hash {
 public:
  void add(const void* bytes, int64_t count) {
    hash_ = hash_ * 0x9E3779B97F4A7C15ull ^
            hash_name(static_cast<const char*>(bytes), static_cast<size_t>(count));
  }
  void add(const std::string& text) { add(text.data(), static_cast<int64_t>(text.size())); }

  /// Blocks of `bytes` bytes from `offset`, the first and the last among them.
  void add_blocks(const InputFile& file, int64_t offset, int64_t bytes, int64_t most) {
    const int64_t blocks = std::min(most, (bytes + kBlock - 1) / kBlock);
    std::vector<char> block(kBlock);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t size = std::min(kBlock, bytes);
      const int64_t at = blocks == 1 ? 0 : (bytes - size) / (blocks - 1) * b;
      file.read(offset + (b + 1 == blocks ? bytes - size : at), size, block.data());
      add(block.data(), size);
    }
  }

  void add(const Source& source, const std::string& name) {
    add(str(name, static_cast<int>(source.kind), " ", source.a, " ", source.b, source.stream,
            source.dtype, to_string(source.shape), to_string(source.perm)));
    if (source.kind == Source::Kind::data) add(source.data.data(), byte_size(source.data.type()));
    for (const SourcePart& part : source.parts) add(part.source, name);
    if (source.kind != Source::Kind::file) return;
    const int64_t bytes = element_count(source.shape) * size_of(source.dtype);
    try {
      add_blocks(*source.file, source.offset, bytes, kBlocksOfATensor);
    } catch (const Error& e) {
      throw e.with_context(str("weight '", name, "'"));
    }
  }

  std::string text() const { return str(std::hex, hash_); }

 private:
  uint64_t hash_ = 1;
};

}  // namespace

std::string contents_hash(const Graph& graph) {
  Hash hash;
  for (const auto& [id, source] : graph.sources) hash.add(source, graph.value(id).name);
  return hash.text();
}

std::string contents_hash(const std::string& data) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : files_of_data(data)) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) inside.push_back(entry.path().string());
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return blocks_hash(files);
}

std::string blocks_hash(const std::vector<std::string>& files) {
  Hash hash;
  hash.add(str(files.size()));
  const size_t count = std::min(files.size(), kMostFiles);
  for (size_t i = 0; i < count; ++i) {
    try {
      const InputFile file(files[i * files.size() / count]);
      hash.add_blocks(file, 0, file.size(), kBlocksOfAFile);
    } catch (const Error&) {  // who reads it tells why
    }
  }
  return hash.text();
}

std::string fingerprint_of(const OnnxFile& model) {
  constexpr int64_t kSmall = 4096;  // bytes of a tensor
  const importer::FileLayout layout(model.file());
  Hash hash;
  int64_t at = 0;
  const auto add_until = [&](int64_t end) {
    const std::string_view bytes = layout.bytes({at, end});
    hash.add(bytes.data(), end - at);
  };
  for (const auto& tensor : layout.initialisers) {
    const std::optional<importer::Span> raw = layout.numbers_of(tensor).raw;
    if (!raw || raw->end - raw->begin <= kSmall) continue;
    add_until(raw->begin);
    hash.add_blocks(model.file(), raw->begin, raw->end - raw->begin, kBlocksOfATensor);
    at = raw->end;
  }
  add_until(static_cast<int64_t>(layout.file.bytes().size()));
  hash.add(blocks_hash(model.external_files()));
  return hash.text();
}

}  // namespace shardrun
