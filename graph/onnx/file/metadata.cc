// Walks the top level of a ModelProto and parses its metadata_props alone.
#include "graph/onnx/file/metadata.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/wire_format_lite.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "onnx-ml.pb.h"

namespace shardrun {

namespace {

using google::protobuf::io::CodedInputStream;

bool is_own(const std::string& key) { return key.rfind("shardrun.", 0) == 0; }

/// The key of an entry of `length` bytes, which is passed over; none where it is no entry. Keys
/// come first in all files that libraries write; where the value does, the key counts as another's.
std::optional<std::string> first_text(CodedInputStream& in, uint32_t length) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kLongestKey = 1 << 10;
  const int end = in.CurrentPosition() + static_cast<int>(length);
  std::string key;
  uint32_t size = 0;
  const uint32_t tag = in.ReadTag();
  if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
      !in.ReadVarint32(&size))
    return std::nullopt;
  const bool is_key =
      WireFormatLite::GetTagFieldNumber(tag) == ::onnx::StringStringEntryProto::kKeyFieldNumber;
  if (is_key && size <= kLongestKey && !in.ReadString(&key, static_cast<int>(size)))
    return std::nullopt;
  if (end < in.CurrentPosition() || !in.Skip(end - in.CurrentPosition())) return std::nullopt;
  return key;
}

}  // namespace

std::map<std::string, std::string> read_onnx_metadata(const std::string& path) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kLongest = 1 << 20;
  std::map<std::string, std::string> out;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // waits for no pipe
  SR_REQUIRE(fd >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
  google::protobuf::io::FileInputStream file(fd);
  file.SetCloseOnDelete(true);
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return out;
  CodedInputStream in(&file);
  while (const uint32_t tag = in.ReadTag()) {
    const bool entry =
        WireFormatLite::GetTagFieldNumber(tag) == ::onnx::ModelProto::kMetadataPropsFieldNumber &&
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!entry) {
      if (!WireFormatLite::SkipField(&in, tag)) return {};
      continue;
    }
    uint32_t length = 0;
    std::string bytes;
    ::onnx::StringStringEntryProto pair;
    if (!in.ReadVarint32(&length)) return {};
    if (length > kLongest) {
      const std::optional<std::string> key = first_text(in, length);
      if (!key) return {};
      SR_REQUIRE(!is_own(*key), invalid_input, path, ": metadata '", *key, "' takes ", length,
                 " bytes, wanted at most ", kLongest);
      continue;  // an exporter's
    }
    const bool read =
        in.ReadString(&bytes, static_cast<int>(length)) && pair.ParseFromString(bytes);
    if (!read) return {};
    out[pair.key()] = pair.value();
  }
  return out;
}

}  // namespace shardrun
