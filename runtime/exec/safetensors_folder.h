// Tensors in several safetensors files, as Hugging Face keeps those of large models:
//   model-00001-of-00002.safetensors, model-00002-of-00002.safetensors,
//   model.safetensors.index.json      {"metadata": {"total_size": …}, "weight_map": {name: file}}
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/safetensors.h"

namespace shardrun {

struct FoundTensor {
  std::string path;  // of its file
  SafetensorsEntry entry;
};
/// The tensors, by name, of a safetensors file, of those that an index file names, or of a folder:
/// those of its model.safetensors, else of its index, else of all safetensors files. Throws
/// invalid_input with what is wrong: nothing of that kind, an index that names a file outside of
/// its folder or a tensor that its file does not have, names twice.
std::map<std::string, FoundTensor> find_tensors(const std::string& path);

/// Writes tensors into a folder, so many bytes of them at most in each file, but for larger ones,
/// which have one of their own. One file has no index. A folder that holds other safetensors files
/// is refused: nobody could tell which belong together.
class SafetensorsFolder {
 public:
  /// Throws invalid_input.
  SafetensorsFolder(std::string path, std::vector<SafetensorsTensor> tensors,
                    std::map<std::string, std::string> metadata, int64_t file_bytes);

  /// Their paths; the index last.
  std::vector<std::string> files() const;
  /// `write_tensor(i, file)` writes the i-th tensor. The files take their places when all are
  /// whole.
  void write(const std::function<void(size_t tensor, SafetensorsWriter& file)>& write_tensor) const;

 private:
  struct File {
    std::string path;
    size_t begin = 0, end = 0;  // of the tensors
  };
  std::string path_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<File> files_;
};

}  // namespace shardrun
