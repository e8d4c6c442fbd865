// Walks the top level of a ModelProto and parses its metadata_props alone.
#include "graph/onnx/metadata.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/wire_format_lite.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "onnx-ml.pb.h"

namespace shardrun {

std::map<std::string, std::string> read_onnx_metadata(const std::string& path) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kLongest = 1 << 20;
  std::map<std::string, std::string> out;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // waits for no pipe
  SR_REQUIRE(fd >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
  google::protobuf::io::FileInputStream file(fd);
  file.SetCloseOnDelete(true);
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return out;
  google::protobuf::io::CodedInputStream in(&file);
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
    const bool read = in.ReadVarint32(&length) && length <= kLongest &&
                      in.ReadString(&bytes, static_cast<int>(length)) &&
                      pair.ParseFromString(bytes);
    if (!read) return {};
    out[pair.key()] = pair.value();
  }
  return out;
}

}  // namespace shardrun
