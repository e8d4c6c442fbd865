// Writing and reading manifests, every field checked.
#include "exec/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/crc32c.h"
#include "base/printable.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStart = "{\"crc32c\": \"", kBehind = "\",\n";
constexpr size_t kDigits = 8;
constexpr const char* kFormat = "shardrun checkpoint";

std::string hex(uint32_t number) {
  char digits[kDigits];
  for (size_t i = kDigits; i-- > 0; number >>= 4) digits[i] = "0123456789abcdef"[number & 15];
  return {digits, kDigits};
}

Json to_json(const Manifest::File& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_crc32c", hex(file.header_crc32c)}};
}

Json to_json(const Manifest::Tensor& tensor) {
  Json pieces = Json::array();
  for (const Manifest::Piece& piece : tensor.pieces) {
    Json box = Json::array();
    for (const Range& range : piece.box) box.push_back({range.begin, range.size});
    pieces.push_back({{"box", box},
                      {"file", piece.file},
                      {"offset", piece.offset},
                      {"crc32c", hex(piece.crc32c)}});
  }
  return {{"name", tensor.value.name},
          {"dtype", to_string(tensor.value.type.dtype)},
          {"shape", tensor.value.type.shape},
          {"pieces", pieces}};
}

template <class List>
std::string lines(const List& list) {
  std::string out = "[";
  for (const auto& item : list) out += str(out.size() > 1 ? ",\n  " : "\n  ", to_json(item).dump());
  return out + "]";
}

/// An object of the file, each of whose fields is asked for by its type.
class Fields {
 public:
  Fields(const Json& object, std::string where, const char* joint = ".")
      : object_(object), where_(std::move(where)), joint_(joint) {
    if (!object.is_object()) wrong(where_, object, "an object");
  }
  /// "m.json", "m.json: files[0]"
  const std::string& where() const { return where_; }
  /// "m.json: step", "m.json: files[0].name"
  std::string where(const std::string& name) const { return where_ + joint_ + name; }

  const Json& get(const char* name) const {
    const auto it = object_.find(name);
    SR_REQUIRE(it != object_.end(), invalid_input, where_, " lacks '", name, "'");
    return *it;
  }
  std::string text(const char* name) const {
    if (!get(name).is_string()) wrong(where(name), get(name), "a text");
    return get(name).get<std::string>();
  }
  int64_t count(const char* name) const { return count(get(name), where(name)); }
  const Json& list(const char* name) const {
    if (!get(name).is_array()) wrong(where(name), get(name), "a list");
    return get(name);
  }
  uint32_t checksum(const char* name) const {
    const std::string digits = text(name);
    uint32_t number = 0;
    const auto [end, code] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
    if (digits.size() != kDigits || code != std::errc() || end != digits.data() + kDigits)
      wrong(where(name), get(name), "8 hexadecimal digits");
    return number;
  }
  DType dtype(const char* name) const {
    try {
      return parse_dtype(text(name));
    } catch (const Error&) {
      wrong(where(name), get(name), "an element type");
    }
  }
  static int64_t count(const Json& item, const std::string& where) {
    const std::optional<int64_t> number = whole_number<int64_t>(item);
    if (!number || *number < 0) wrong(where, item, "a whole number of at least 0");
    return *number;
  }

 private:
  [[noreturn]] static void wrong(const std::string& where, const Json& got, const char* wanted) {
    const std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
    fail(ErrorKind::invalid_input, where, " is ", excerpt(text, 40), ", wanted ", wanted);
  }

  const Json& object_;
  std::string where_;
  const char* joint_;
};

Manifest::File read_file(const Fields& from) {
  Manifest::File out{from.text("name"), from.count("bytes"), from.count("header_bytes"),
                     from.checksum("header_crc32c")};
  const bool plain = !out.name.empty() && out.name[0] != '.' &&
                     out.name.find('/') == std::string::npos &&
                     out.name.find('\0') == std::string::npos;
  SR_REQUIRE(plain, invalid_input, from.where("name"), " is '", out.name,
             "', wanted the name of a file in the checkpoint's folder");
  SR_REQUIRE(out.header_bytes <= out.bytes, invalid_input, from.where(), ": a header of ",
             out.header_bytes, " bytes in a file of ", out.bytes);
  return out;
}

Box read_box(const Json& list, const Shape& shape, const std::string& where) {
  Box box;
  for (const Json& item : list) {
    SR_REQUIRE(item.is_array() && item.size() == 2, invalid_input, where,
               " holds what is no [begin, size]");
    box.push_back({Fields::count(item[0], where), Fields::count(item[1], where)});
  }
  SR_REQUIRE(box.size() == shape.size(), invalid_input, where, " has ", box.size(),
             " dims, its tensor has ", shape.size());
  for (size_t d = 0; d < box.size(); ++d) {
    SR_REQUIRE(box[d].size > 0 && box[d].begin < shape[d] && box[d].size <= shape[d] - box[d].begin,
               invalid_input, where, ": dim ", d, " is [", box[d].begin, ", +", box[d].size,
               ") of ", shape[d]);
  }
  return box;
}

Manifest::Piece read_piece(const Fields& from, const TensorType& type,
                           const std::vector<Manifest::File>& files) {
  Manifest::Piece out;
  out.box = read_box(from.list("box"), type.shape, from.where("box"));
  out.file = static_cast<size_t>(from.count("file"));
  SR_REQUIRE(out.file < files.size(), invalid_input, from.where("file"), " is ", out.file,
             ", there are ", files.size());
  const Manifest::File& file = files[out.file];
  out.offset = from.count("offset");
  out.bytes = byte_size({type.dtype, box_shape(out.box)});
  out.crc32c = from.checksum("crc32c");
  SR_REQUIRE(out.offset >= file.header_bytes && out.offset <= file.bytes &&
                 out.bytes <= file.bytes - out.offset,
             invalid_input, from.where(), ": bytes [", out.offset, ", +", out.bytes,
             ") are not all behind the header of ", file.name, ", which has ", file.bytes);
  return out;
}

/// Pieces lie inside, so they are all of the tensor if they are as many elements and no two of them
/// meet. Along the first dim only those that have begun and not ended can.
void check_complete(const Manifest::Tensor& tensor, const std::string& where) {
  int64_t elements = 0;
  std::vector<const Manifest::Piece*> by_begin, open;
  for (const Manifest::Piece& piece : tensor.pieces) {
    elements += element_count(box_shape(piece.box));
    by_begin.push_back(&piece);
  }
  SR_REQUIRE(elements == element_count(tensor.value.type.shape), invalid_input, where,
             ": its pieces hold ", elements, " elements, it has ",
             element_count(tensor.value.type.shape));
  if (tensor.value.type.shape.empty()) return;
  std::sort(by_begin.begin(), by_begin.end(),
            [](auto* a, auto* b) { return a->box[0].begin < b->box[0].begin; });
  for (const Manifest::Piece* piece : by_begin) {
    std::erase_if(open, [&](auto* o) { return o->box[0].end() <= piece->box[0].begin; });
    for (const Manifest::Piece* other : open) {
      SR_REQUIRE(is_empty(intersect(piece->box, other->box)), invalid_input, where,
                 ": two of its pieces overlap");
    }
    open.push_back(piece);
  }
}

Manifest::Tensor read_tensor(const Fields& from, const std::vector<Manifest::File>& files) {
  Manifest::Tensor out;
  out.value.name = from.text("name");
  const std::string where = str(from.where(), " ('", out.value.name, "')");
  out.value.type.dtype = from.dtype("dtype");
  for (const Json& extent : from.list("shape"))
    out.value.type.shape.push_back(Fields::count(extent, where + ".shape"));
  try {
    byte_size(out.value.type);  // is there such a size?
  } catch (const Error& e) {
    throw e.with_context(where);
  }
  const Json& pieces = from.list("pieces");
  for (size_t i = 0; i < pieces.size(); ++i) {
    out.pieces.push_back(
        read_piece({pieces[i], str(where, ".pieces[", i, "]")}, out.value.type, files));
  }
  check_complete(out, where);
  return out;
}

/// Behind the checksum, which has been checked.
Manifest read_fields(const Fields& root) {
  Manifest out;
  SR_REQUIRE(root.text("format") == kFormat, invalid_input, root.where("format"), " is '",
             root.text("format"), "', wanted '", kFormat, "'");
  const int64_t version = root.count("version");
  SR_REQUIRE(version == Manifest::kVersion, invalid_input, root.where(), ": is of version ",
             version, ", this shardrun reads version ", Manifest::kVersion,
             "; use the shardrun that wrote it");
  out.step = root.count("step");
  out.mesh = root.text("mesh");
  out.run = root.get("run");
  Fields(out.run, root.where("run"));
  std::set<std::string> names;
  for (const Json& item : root.list("files")) {
    out.files.push_back(read_file({item, root.where(str("files[", out.files.size(), "]"))}));
    SR_REQUIRE(names.insert(out.files.back().name).second, invalid_input, root.where(), ": file ",
               out.files.back().name, " is there twice");
  }
  names.clear();
  for (const Json& item : root.list("tensors")) {
    out.tensors.push_back(
        read_tensor({item, root.where(str("tensors[", out.tensors.size(), "]"))}, out.files));
    SR_REQUIRE(names.insert(out.tensors.back().value.name).second, invalid_input, root.where(),
               ": tensor '", out.tensors.back().value.name, "' is there twice");
  }
  return out;
}

}  // namespace

const Manifest::Tensor* Manifest::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const Tensor& tensor) { return tensor.value.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

int64_t Manifest::bytes() const {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += byte_size(tensor.value.type);
  return total;
}

std::string to_text(const Manifest& manifest) {
  std::string text =
      str("\"format\": \"", kFormat, "\", \"version\": ", Manifest::kVersion,
          ", \"step\": ", manifest.step, ", \"mesh\": ", Json(manifest.mesh).dump(),
          ",\n\"run\": ", manifest.run.dump(), ",\n\"files\": ", lines(manifest.files),
          ",\n\"tensors\": ", lines(manifest.tensors), "}\n");
  return str(kStart, hex(crc32c(text.data(), static_cast<int64_t>(text.size()))), kBehind, text);
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
  const size_t start = kStart.size() + kDigits + kBehind.size();
  SR_REQUIRE(text.size() > start && text.compare(0, kStart.size(), kStart) == 0 &&
                 text.compare(kStart.size() + kDigits, kBehind.size(), kBehind) == 0,
             invalid_input, origin, ": does not begin as a checkpoint's manifest does");
  const std::string written = text.substr(kStart.size(), kDigits),
                    is =
                        hex(crc32c(text.data() + start, static_cast<int64_t>(text.size() - start)));
  SR_REQUIRE(written == is, invalid_input, origin, ": its checksum is ", is, ", it says ", written,
             ": the file is damaged");
  const auto root = parse_json<Json>(text, origin, "a checkpoint's manifest");
  try {
    return read_fields({root, origin, ": "});
  } catch (const Json::exception& e) {
    fail(ErrorKind::invalid_input, origin, ": ", e.what());
  }
}

void check_holds(const Manifest& manifest, const std::vector<KeptValue>& values, Holds holds,
                 const std::string& origin) {
  std::map<std::string_view, const TensorType*> saved;
  for (const Manifest::Tensor& tensor : manifest.tensors)
    saved[tensor.value.name] = &tensor.value.type;
  for (const KeptValue& value : values) {
    const auto it = saved.find(value.name);
    SR_REQUIRE(it != saved.end(), invalid_input, origin, ": has no '", value.name, "' (",
               value.type, "), which the model has; it is of another model, or of other options");
    SR_REQUIRE(*it->second == value.type, invalid_input, origin, ": '", value.name, "' is ",
               *it->second, ", the model's is ", value.type, "; it is of another model");
    saved.erase(it);
  }
  SR_REQUIRE(holds == Holds::at_least || saved.empty(), invalid_input, origin, ": has '",
             saved.begin()->first, "' (", *saved.begin()->second,
             "), which the model does not have; it is of another model, or of other options");
}

}  // namespace shardrun
