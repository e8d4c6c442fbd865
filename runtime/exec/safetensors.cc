// Reading headers that anybody may have written, and writing our own.
#include "exec/safetensors.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files/input_file.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8, kMostText = 100'000'000, kAlignment = 8;

struct FormatType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
constexpr FormatType kFormatTypes[] = {{"F32", 32, DType::f32},
                                       {"F64", 64, DType::f64},
                                       {"BF16", 16, DType::bf16},
                                       {"F16", 16, DType::f16},
                                       {"I8", 8, DType::i8},
                                       {"U8", 8, DType::u8},
                                       {"I32", 32, DType::i32},
                                       {"I64", 64, DType::i64},
                                       {"BOOL", 8, DType::boolean},
                                       {"I16", 16, std::nullopt},
                                       {"U16", 16, std::nullopt},
                                       {"U32", 32, std::nullopt},
                                       {"U64", 64, std::nullopt},
                                       {"F8_E5M2", 8, std::nullopt},
                                       {"F8_E4M3", 8, std::nullopt},
                                       {"F8_E8M0", 8, std::nullopt},
                                       {"F8_E4M3FNUZ", 8, std::nullopt},
                                       {"F8_E5M2FNUZ", 8, std::nullopt},
                                       {"F6_E2M3", 6, std::nullopt},
                                       {"F6_E3M2", 6, std::nullopt},
                                       {"F4", 4, std::nullopt},
                                       {"C64", 64, std::nullopt}};

const FormatType* type_named(std::string_view name) {
  const auto it = std::find_if(std::begin(kFormatTypes), std::end(kFormatTypes),
                               [&](const FormatType& t) { return t.name == name; });
  return it == std::end(kFormatTypes) ? nullptr : it;
}

/// Of so many elements, if that is a whole number below 2^63.
std::optional<int64_t> bytes_of(const Shape& shape, int bits) {
  __int128 total = bits;
  for (int64_t extent : shape) {
    total *= extent;
    if (total > __int128{std::numeric_limits<int64_t>::max()} * 8) return std::nullopt;
  }
  return total % 8 == 0 ? std::optional(static_cast<int64_t>(total / 8)) : std::nullopt;
}

std::map<std::string, std::string> read_metadata(const Json& object, const std::string& path) {
  SR_REQUIRE(object.is_object(), invalid_input, path, ": __metadata__ is ", object.type_name(),
             ", wanted an object of texts");
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : object.items()) {
    SR_REQUIRE(value.is_string(), invalid_input, path, ": __metadata__ '", name, "' is ",
               value.type_name(), ", wanted a text");
    out[name] = value.get<std::string>();
  }
  return out;
}

const Json& field(const Json& object, const char* name, const std::string& where) {
  const auto it = object.find(name);
  SR_REQUIRE(it != object.end(), invalid_input, where, " has no '", name, "'");
  return *it;
}

std::vector<int64_t> read_sizes(const Json& list, const std::string& where, const char* name) {
  SR_REQUIRE(list.is_array(), invalid_input, where, ": ", name, " is ", list.type_name(),
             ", wanted a list");
  std::vector<int64_t> out;
  for (const Json& item : list) {
    const std::optional<int64_t> number = whole_number<int64_t>(item);
    SR_REQUIRE(number && *number >= 0, invalid_input, where, ": ", name, " has ", item.dump(),
               ", wanted a whole number of at least 0");
    out.push_back(*number);
  }
  return out;
}

SafetensorsEntry read_entry(const std::string& name, const Json& object, int64_t data_bytes,
                            const std::string& path) {
  const std::string where = str(path, ": tensor '", name, "'");
  SR_REQUIRE(object.is_object(), invalid_input, where, " is ", object.type_name(),
             ", wanted an object");
  const Json& dtype = field(object, "dtype", where);
  const FormatType* type = dtype.is_string() ? type_named(dtype.get<std::string>()) : nullptr;
  SR_REQUIRE(type != nullptr, invalid_input, where, ": dtype is ", dtype.dump(),
             ", which the format does not have");
  SafetensorsEntry out;
  out.name = name;
  out.dtype = type->name;
  out.shape = read_sizes(field(object, "shape", where), where, "shape");
  const std::vector<int64_t> offsets =
      read_sizes(field(object, "data_offsets", where), where, "data_offsets");
  SR_REQUIRE(offsets.size() == 2 && offsets[0] <= offsets[1], invalid_input, where,
             ": data_offsets are ", to_string(offsets), ", wanted a begin and an end");
  SR_REQUIRE(offsets[1] <= data_bytes, invalid_input, where, " ends at byte ", offsets[1],
             " of the data, which end at ", data_bytes);
  out.begin = offsets[0];
  out.bytes = offsets[1] - offsets[0];
  const std::optional<int64_t> wanted = bytes_of(out.shape, type->bits);
  SR_REQUIRE(wanted && *wanted == out.bytes, invalid_input, where, ": ", out.dtype, " of shape ",
             to_string(out.shape), wanted ? str(" takes ", *wanted, " bytes") : " has no size",
             ", its data_offsets leave ", out.bytes);
  return out;
}

/// Begins are still counted from the data's.
void check_places(const std::vector<SafetensorsEntry>& tensors, int64_t data_bytes,
                  const std::string& path) {
  int64_t at = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    SR_REQUIRE(tensor.begin == at, invalid_input, path, ": tensor '", tensor.name,
               "' begins at byte ", tensor.begin, " of the data, the one before it ends at ", at,
               tensor.begin < at ? ": they overlap" : ": there is a hole");
    at += tensor.bytes;
  }
  SR_REQUIRE(at == data_bytes, invalid_input, path, ": the tensors end at byte ", at,
             " of the data, the file at ", data_bytes);
}

/// By a file's first eight bytes: torch.save() writes a zip archive ("PK", 3, 4), and before
/// PyTorch 1.6 a pickle of protocol 2 or later (0x80, 2).
bool is_pickled(uint64_t begin) {
  return (begin & 0xffffffff) == 0x04034b50 || ((begin & 0xff) == 0x80 && (begin >> 8 & 0xff) <= 5);
}

}  // namespace

TensorType SafetensorsEntry::type() const {
  const FormatType* of = type_named(dtype);
  SR_REQUIRE(of != nullptr && of->dtype, unsupported, "tensor '", name, "' is ", dtype,
             ", which is not supported");
  return {*of->dtype, shape};
}

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

SafetensorsHeader read_safetensors_header(const std::string& path) {
  require_regular_file(path, "a safetensors file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  SR_REQUIRE(file.is_open(), invalid_input, path, ": cannot open: ", std::strerror(errno));
  SafetensorsHeader out;
  out.file_bytes = static_cast<int64_t>(file.tellg());
  SR_REQUIRE(out.file_bytes >= kLengthBytes, invalid_input, path, ": has ", out.file_bytes,
             " bytes, no safetensors file has fewer than ", kLengthBytes);
  file.seekg(0);
  std::array<unsigned char, kLengthBytes> raw{};
  file.read(reinterpret_cast<char*>(raw.data()), kLengthBytes);
  uint64_t length = 0;
  for (size_t i = raw.size(); i-- > 0;) length = length << 8 | raw[i];
  const bool may_be = length >= 2 && length <= kMostText;
  SR_REQUIRE(may_be || !is_pickled(length), invalid_input, path,
             ": is no safetensors file but one ",
             "of PyTorch's pickled ones, which run code when they are read; save the weights with ",
             "safetensors.torch.save_file");
  SR_REQUIRE(may_be, invalid_input, path, ": its header has ", length, " bytes, wanted 2 to ",
             kMostText, "; is it a safetensors file?");
  const auto bytes = static_cast<int64_t>(length);
  SR_REQUIRE(bytes <= out.file_bytes - kLengthBytes, invalid_input, path, ": its header has ",
             bytes, " bytes, the file only ", out.file_bytes);
  std::string text(length, '\0');
  file.read(text.data(), bytes);
  SR_REQUIRE(file.good(), invalid_input, path, ": cannot read: ", std::strerror(errno));
  SR_REQUIRE(text[0] == '{', invalid_input, path, ": its header does not begin with '{'");
  out.header_bytes = kLengthBytes + bytes;
  const Json header = parse_json<Json>(text, path, "a header of safetensors");
  const int64_t data_bytes = out.file_bytes - out.header_bytes;
  for (const auto& [name, object] : header.items()) {
    if (name == "__metadata__") {
      out.metadata = read_metadata(object, path);
    } else {
      out.tensors.push_back(read_entry(name, object, data_bytes, path));
    }
  }
  std::sort(out.tensors.begin(), out.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  check_places(out.tensors, data_bytes, path);
  for (SafetensorsEntry& tensor : out.tensors) tensor.begin += out.header_bytes;
  return out;
}

std::string_view safetensors_dtype(DType dtype) {
  for (const FormatType& type : kFormatTypes) {
    if (type.dtype == dtype) return type.name;
  }
  fail(ErrorKind::internal, "safetensors have no type for ", dtype);
}

std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json::object_t header;
  if (!metadata.empty()) header.emplace_back("__metadata__", metadata);
  std::set<std::string_view> names;
  int64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const int64_t end = at + byte_size(tensor.type);
    SR_REQUIRE(names.insert(tensor.name).second, internal, "safetensors: '", tensor.name,
               "' is there twice");
    header.emplace_back(tensor.name,
                        nlohmann::ordered_json{{"dtype", safetensors_dtype(tensor.type.dtype)},
                                               {"shape", tensor.type.shape},
                                               {"data_offsets", {at, end}}});
    at = end;
  }
  std::string text = nlohmann::ordered_json(std::move(header)).dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string out;
  for (uint64_t i = 0; i < kLengthBytes; ++i)
    out += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<SafetensorsTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(path) {
  for (const SafetensorsTensor& tensor : tensors) left_ += byte_size(tensor.type);
  file_.stream() << safetensors_header(tensors, metadata);
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  SR_REQUIRE(bytes <= left_, internal, path_, ": got ", bytes, " bytes, ", left_, " are left");
  left_ -= bytes;
  file_.stream().write(static_cast<const char*>(data), bytes);
}

void SafetensorsWriter::finish() {
  SR_REQUIRE(left_ == 0, internal, path_, ": ", left_, " bytes are missing");
  file_.finish();
}

}  // namespace shardrun
