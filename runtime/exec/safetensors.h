// The safetensors format: a JSON header of names, types and places, and behind it the tensors'
// bytes.
//
// Eight bytes, little-endian, say how long the header is; it is padded with spaces. Tensors follow
// each other without holes, row-major and little-endian
// (github.com/huggingface/safetensors, "Format").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/output_file.h"
#include "base/shape.h"

namespace shardrun {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file has it: "F32", "BF16", also "F8_E4M3", of which we have none
  Shape shape;
  int64_t begin = 0, bytes = 0;  // in the file, the header counted

  /// Throws unsupported where no DType is that type.
  TensorType type() const;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  // by place
  int64_t header_bytes = 0;               // the eight before the text counted
  int64_t file_bytes = 0;

  const SafetensorsEntry* find(std::string_view name) const;  // null: none
};

/// Reads and checks all that can be known without the tensors' bytes. Throws invalid_input with the
/// path, the tensor and what is wrong: a header longer than the file or than 100 MB, what is not
/// JSON or not of the format, names twice, types whose bytes are not those between the offsets,
/// holes, overlaps, and a file that is longer or shorter than its tensors.
SafetensorsHeader read_safetensors_header(const std::string& path);

/// "F32". Throws internal for a type that the format has not.
std::string_view safetensors_dtype(DType dtype);

/// A tensor that a file is going to have.
struct SafetensorsTensor {
  std::string name;
  TensorType type;
};
/// A whole header, its length in front. The tensors' bytes come in this order.
std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata);

/// Writes a file from front to back, no more of it in memory than is passed in:
///   SafetensorsWriter file("w.safetensors", {{"w", {DType::f32, {2, 3}}}});
///   file.write(numbers, 24);
///   file.finish();
/// Only then it takes the place of what was there (base/files/output_file.h).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// The next bytes of the tensors, in their order; a call may end anywhere.
  void write(const void* data, int64_t bytes);
  /// Throws internal where bytes are missing, device where they could not be written.
  void finish();

 private:
  std::string path_;
  OutputFile file_;
  int64_t left_ = 0;
};

}  // namespace shardrun
