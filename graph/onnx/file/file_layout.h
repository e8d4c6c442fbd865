// FileLayout: where an ONNX file holds what, byte by byte.
//
//   ModelProto  = 1: ir_version … 7: GraphProto … 26: configuration
//   GraphProto  = … 1: NodeProto … 5: TensorProto …          (node, initializer)
//   NodeProto   = … 1: input … 10: device_configurations (1: configuration_id)
//   TensorProto = 1: dims, 2: data_type, 4 to 11: numbers by their type, 8: name, 9: raw_data,
//                 13: external_data (1: key, 2: value), 14: data_location
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "graph/onnx/file/mapped_file.h"

namespace shardrun::importer {

constexpr uint64_t kIrVersionField = 1, kGraphField = 7, kMetadataField = 14,
                   kConfigurationField = 26;                         // of ModelProto
constexpr uint64_t kNodeField = 1, kInitialiserField = 5;            // of GraphProto
constexpr uint64_t kInputField = 1, kDeviceConfigurationField = 10;  // of NodeProto
constexpr uint64_t kDimsField = 1, kDataTypeField = 2, kNameField = 8, kRawDataField = 9,
                   kExternalDataField = 13, kDataLocationField = 14;  // of TensorProto
constexpr uint64_t kExternal = 1;                                     // of DataLocation

/// How tensors of an element type keep their numbers where they are not raw.
struct ElementType {
  uint64_t onnx = 0;  // TensorProto.DataType
  DType dtype = DType::f32;
  uint64_t field = 0;    // float_data, int32_data, …
  bool varints = false;  // else little-endian
};
/// Null for a type that no DType stores.
const ElementType* element_type(uint64_t onnx);
const ElementType& element_type(DType dtype);

struct Span {
  int64_t begin = 0, end = 0;
};

/// A field that holds a message.
struct Message {
  Span whole, length, payload;  // length: the varint that says how long the payload is
};

struct FileLayout {
  struct Initialiser {
    Message message;
    std::string name;
  };
  /// Throws invalid_input if the file is no model.
  explicit FileLayout(const InputFile& from);

  /// An initialiser's numbers: external, raw, or else in a field by their type.
  struct Numbers {
    uint64_t onnx_type = 0;
    int64_t count = 1;  // by dims
    bool external = false;
    std::map<std::string, std::string> keys;    // of external_data
    Span location;                              // its entry that has it, whole
    std::optional<Span> raw;                    // the payload
    std::map<uint64_t, std::vector<Span>> own;  // by field: each time it occurs, whole
  };
  Numbers numbers_of(const Initialiser& tensor) const;

  std::string_view bytes(const Span& span) const {
    return file.bytes().substr(static_cast<size_t>(span.begin),
                               static_cast<size_t>(span.end - span.begin));
  }
  Span span(std::string_view bytes) const;  // of a part of the file

  MappedFile file;
  Message graph;
  std::vector<Message> nodes;
  std::vector<Initialiser> initialisers;

 private:
  Message message(std::string_view whole, std::string_view payload) const;
  bool read_graph(std::string_view fields);
};

}  // namespace shardrun::importer
