#include "graph/onnx/file/file_layout.h"

#include <algorithm>
#include <iterator>

#include "graph/onnx/file/wire.h"

namespace shardrun::importer {
namespace {

constexpr ElementType kElementTypes[] = {
    {1, DType::f32, 4, false}, {2, DType::u8, 5, true},     {3, DType::i8, 5, true},
    {6, DType::i32, 5, true},  {7, DType::i64, 7, true},    {9, DType::boolean, 5, true},
    {10, DType::f16, 5, true}, {11, DType::f64, 10, false}, {16, DType::bf16, 5, true}};
constexpr uint64_t kFirstOwn = 4, kLastOwn = 11;

}  // namespace

const ElementType* element_type(uint64_t onnx) {
  const auto it = std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                               [&](const ElementType& type) { return type.onnx == onnx; });
  return it == std::end(kElementTypes) ? nullptr : it;
}

const ElementType& element_type(DType dtype) {
  return *std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                       [&](const ElementType& type) { return type.dtype == dtype; });
}

FileLayout::FileLayout(const InputFile& from) : file(from) {
  bool found = false;
  const bool walked = for_each_field(file.bytes(), [&](uint64_t field, auto whole, auto payload) {
    if (field != kGraphField || !payload) return true;
    graph = message(whole, *payload);
    return !std::exchange(found, true) && read_graph(*payload);
  });
  SR_REQUIRE(walked && found, invalid_input, from.path(),
             ": is not an ONNX model (cut off, damaged, or another format)");
}

Span FileLayout::span(std::string_view bytes) const {
  const int64_t begin = bytes.data() - file.data();
  return {begin, begin + static_cast<int64_t>(bytes.size())};
}

Message FileLayout::message(std::string_view whole, std::string_view payload) const {
  size_t tag_bytes = 0;
  uint64_t tag = 0;
  read_varint(whole, tag_bytes, tag);
  const Span all = span(whole), fields = span(payload);
  return {all, {all.begin + static_cast<int64_t>(tag_bytes), fields.begin}, fields};
}

bool FileLayout::read_graph(std::string_view fields) {
  return for_each_field(fields, [&](uint64_t field, auto whole, auto payload) {
    if (field == kNodeField && payload) nodes.push_back(message(whole, *payload));
    if (field != kInitialiserField || !payload) return true;
    Initialiser tensor{message(whole, *payload), ""};
    const bool walked = for_each_field(*payload, [&](uint64_t f, auto, auto text) {
      if (f == kNameField && text) tensor.name = *text;
      return true;
    });
    initialisers.push_back(std::move(tensor));
    return walked;
  });
}

FileLayout::Numbers FileLayout::numbers_of(const Initialiser& tensor) const {
  Numbers out;
  const auto add_dim = [&](uint64_t dim) { out.count *= static_cast<int64_t>(dim); };
  for_each_field(bytes(tensor.message.payload), [&](uint64_t field, auto whole, auto payload) {
    switch (field) {
      case kDimsField:
        if (!payload) add_dim(number_in(whole));
        for (size_t at = 0; payload && at < payload->size();) {
          uint64_t dim = 0;
          if (!read_varint(*payload, at, dim)) break;
          add_dim(dim);
        }
        break;
      case kDataTypeField: out.onnx_type = number_in(whole); break;
      case kDataLocationField: out.external = number_in(whole) == kExternal; break;
      case kRawDataField:
        if (payload) out.raw = span(*payload);
        break;
      case kExternalDataField: {
        if (!payload) break;
        std::string key, value;
        for_each_field(*payload, [&](uint64_t f, auto, auto text) {
          if (text) (f == 1 ? key : value) = *text;
          return true;
        });
        if (key == "location") out.location = span(whole);
        out.keys[key] = value;
        break;
      }
      default:
        if (field >= kFirstOwn && field <= kLastOwn && field != kNameField)
          out.own[field].push_back(span(whole));
    }
    return true;
  });
  return out;
}

}  // namespace shardrun::importer
