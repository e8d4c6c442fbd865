// Edits of a file's bytes, some of them numbers that are made on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "graph/onnx/file/model_copy.h"

namespace shardrun::importer {

/// A tensor's numbers on their way to a file.
struct Stream {
  const Numbers* numbers = nullptr;
  std::string name;  // of the tensor, for errors
  DType as = DType::f32;
  bool varints = false;  // as protobuf's fields of integers, else little-endian
  int64_t bytes = 0;
};
/// Varints are made once to know how long they are. Throws unsupported for a number that is finite
/// and too large for `as`.
Stream make_stream(const Numbers& numbers, const std::string& name, DType as, bool varints);

/// Other bytes in the place of some: a text, then a stream.
struct Edit {
  int64_t at = 0, removed = 0;
  std::string text = {};
  std::optional<Stream> stream = {};

  int64_t delta() const {
    return static_cast<int64_t>(text.size()) + (stream ? stream->bytes : 0) - removed;
  }
};

/// Copies a file to `to` with the edits, which are in order and do not overlap. Throws
/// invalid_input if the file is shorter than they say.
void copy_with(const InputFile& from, const std::vector<Edit>& edits, std::ostream& to);

/// Hands all of the stream's bytes to `put`, some at a time. Throws as make_stream does.
void each_block(const Stream& stream, const std::function<void(const char*, int64_t)>& put);

}  // namespace shardrun::importer
