// The skeleton of an ONNX file: the model without the weights that stay on disk.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/input_file.h"
#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// `length` bytes of a file from byte `offset`.
struct FileSpan {
  std::shared_ptr<const InputFile> file;
  int64_t offset = 0;
  int64_t length = 0;
};

struct Skeleton {
  std::string bytes;             // a serialised ModelProto
  std::map<int, FileSpan> raws;  // what was left out, by the initialiser's place
};

/// `file` without long raw_data of its initialisers. Throws invalid_input if it is empty or not a
/// message, and unsupported if more than 256 MiB would remain.
Skeleton make_skeleton(const std::shared_ptr<const InputFile>& file);

/// Bytes of memory that the parsed skeleton takes: a message of two bytes takes a hundred. Counting
/// ends beyond `most`, and throws unsupported where there are more fields than parse in seconds.
int64_t parsed_bytes(std::string_view skeleton, int64_t most);
int64_t parsed_bytes(const ::onnx::NodeProto& node, int64_t most);

}  // namespace shardrun::importer
