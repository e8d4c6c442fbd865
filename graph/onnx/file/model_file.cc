// Opening an ONNX file: its skeleton, parsed, and then checks by hand.
#include "graph/onnx/file/model_file.h"

#include <charconv>
#include <optional>
#include <set>

#include "base/printable.h"
#include "graph/onnx/exporter/printable_names.h"
#include "graph/onnx/file/mapped_file.h"

namespace shardrun::importer {
namespace {

constexpr int64_t kInitialiserBytes = 1200;  // what is kept of one, but for its numbers
constexpr size_t kLongestName = 4096;        // bytes; exporters write some hundred
constexpr int64_t kOldestIr = 3, kNewestIr = 14, kNewestOpset = 28;

int64_t parse_bytes(const std::string& text, const char* what) {
  int64_t value = -1;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  SR_REQUIRE(ec == std::errc() && end == text.data() + text.size() && value >= 0, invalid_input,
             "external data: ", what, " is '", printable(text), "', wanted a number of bytes");
  return value;
}

struct StoredType {
  int onnx;
  const char* name;
  std::optional<DType> stored;  // of raw bytes, if a DType has that layout
  std::optional<DType> graph;
  int bytes;
};

// TensorProto.DataType; sub-byte, 8-bit floating, string and complex types have no DType.
const StoredType kStoredTypes[] = {
    {1, "float", DType::f32, DType::f32, 4},     {2, "uint8", DType::u8, DType::u8, 1},
    {3, "int8", DType::i8, DType::i8, 1},        {4, "uint16", std::nullopt, DType::i32, 2},
    {5, "int16", std::nullopt, DType::i32, 2},   {6, "int32", DType::i32, DType::i32, 4},
    {7, "int64", DType::i64, DType::i64, 8},     {9, "bool", DType::boolean, DType::boolean, 1},
    {10, "float16", DType::f16, DType::f32, 2},  {11, "double", DType::f64, DType::f32, 8},
    {12, "uint32", std::nullopt, DType::i64, 4}, {13, "uint64", DType::i64, DType::i64, 8},
    {16, "bfloat16", DType::bf16, DType::f32, 2}};

const StoredType* find_type(int onnx_type) {
  for (const StoredType& type : kStoredTypes) {
    if (type.onnx == onnx_type) return &type;
  }
  return nullptr;
}

const StoredType& stored_type(int onnx_type) {
  const StoredType* type = find_type(onnx_type);
  SR_REQUIRE(type != nullptr, unsupported, "element type ", onnx_type_name(onnx_type),
             " is not supported; supported are float, double, float16, bfloat16, bool and integers "
             "of 8 to 64 bits");
  return *type;
}

/// Widens 16-bit and unsigned 32-bit raw elements.
Tensor widen(const char* raw, const StoredType& type, const Shape& shape) {
  Tensor out({*type.graph, shape});
  for (int64_t i = 0; i < out.count(); ++i) {
    auto read = [&](auto tag) {
      std::memcpy(&tag, raw + i * type.bytes, sizeof tag);
      return static_cast<int64_t>(tag);
    };
    const int64_t value = type.onnx == 4   ? read(uint16_t{})
                          : type.onnx == 5 ? read(int16_t{})
                                           : read(uint32_t{});
    if (out.dtype() == DType::i32)
      out.as<int32_t>()[i] = static_cast<int32_t>(value);
    else
      out.as<int64_t>()[i] = value;
  }
  return out;
}

Tensor from_raw(const char* raw, const StoredType& type, const Shape& shape) {
  if (!type.stored) return widen(raw, type, shape);
  Tensor out({*type.stored, shape});
  if (out.count() == 0) return out;  // nothing is mapped of an empty file
  std::memcpy(out.data(), raw, static_cast<size_t>(byte_size(out.type())));
  if (type.onnx == 9) {
    for (int64_t i = 0; i < out.count(); ++i) out.as<char>()[i] = out.as<char>()[i] != 0;
  }
  return out;
}

/// Of what is held in memory from here on.
void take_numbers(ImportBudget& budget, const StoredType& type, int64_t count) {
  budget.take(count * size_of(*type.graph), "its numbers");
}

/// Elements from the typed fields (float_data, int32_data …) that an element type uses.
Tensor from_fields(const ::onnx::TensorProto& proto, const StoredType& type, const Shape& shape,
                   ImportBudget& budget) {
  const int64_t wanted = element_count(shape);
  auto check = [&](int got, const char* field) {
    SR_REQUIRE(got == wanted, invalid_input, "tensor '", proto.name(), "' of shape ",
               to_string(shape), " has ", got, " elements in ", field, ", wanted ", wanted);
    take_numbers(budget, type, wanted);
  };
  Tensor out;
  switch (type.onnx) {
    case 1:
      check(proto.float_data_size(), "float_data");
      out = Tensor({DType::f32, shape});
      std::copy(proto.float_data().begin(), proto.float_data().end(), out.as<float>());
      return out;
    case 11:
      check(proto.double_data_size(), "double_data");
      out = Tensor({DType::f64, shape});
      std::copy(proto.double_data().begin(), proto.double_data().end(), out.as<double>());
      return out;
    case 7:
      check(proto.int64_data_size(), "int64_data");
      out = Tensor({DType::i64, shape});
      std::copy(proto.int64_data().begin(), proto.int64_data().end(), out.as<int64_t>());
      return out;
    case 12:
    case 13:
      check(proto.uint64_data_size(), "uint64_data");
      out = Tensor({DType::i64, shape});
      for (int64_t i = 0; i < wanted; ++i) {
        out.as<int64_t>()[i] = static_cast<int64_t>(proto.uint64_data(static_cast<int>(i)));
      }
      return out;
    default: break;
  }
  check(proto.int32_data_size(), "int32_data");
  out = Tensor({type.onnx == 10 || type.onnx == 16 ? *type.stored : *type.graph, shape});
  for (int64_t i = 0; i < wanted; ++i) {
    const int32_t value = proto.int32_data(static_cast<int>(i));
    switch (out.dtype()) {
      case DType::i32: out.as<int32_t>()[i] = value; break;
      case DType::i8: out.as<int8_t>()[i] = static_cast<int8_t>(value); break;
      case DType::u8: out.as<uint8_t>()[i] = static_cast<uint8_t>(value); break;
      case DType::boolean: out.as<bool>()[i] = value != 0; break;
      default:
        out.as<uint16_t>()[i] = static_cast<uint16_t>(value);
        break;  // f16 and bf16 bit patterns
    }
  }
  return out;
}

}  // namespace

std::string onnx_type_name(int onnx_type) {
  if (const StoredType* type = find_type(onnx_type)) return type->name;
  if (::onnx::TensorProto::DataType_IsValid(onnx_type)) {
    return ::onnx::TensorProto::DataType_Name(
        static_cast<::onnx::TensorProto::DataType>(onnx_type));
  }
  return str("number ", onnx_type);
}

bool is_floating_onnx_type(int onnx_type) {
  using ::onnx::TensorProto;
  return onnx_type == TensorProto::FLOAT || onnx_type == TensorProto::DOUBLE ||
         onnx_type == TensorProto::FLOAT16 || onnx_type == TensorProto::BFLOAT16;
}

DType graph_dtype(int onnx_type) { return *stored_type(onnx_type).graph; }

Tensor StoredTensor::load() const {
  Tensor out(type);
  read_source(source(), type, full_box(type.shape), 0, out.data());
  return out;
}

Source StoredTensor::source() const {
  Source out;
  if (in_file()) {
    out.kind = Source::Kind::file;
    out.file = file;
    out.offset = offset;
    out.dtype = stored;
    out.shape = type.shape;
  } else {
    out.kind = Source::Kind::data;
    out.data = data;
  }
  return out;
}

Contents::Contents(const StoredTensor& tensor) {
  if (!tensor.in_file()) {
    bytes_ = static_cast<const char*>(tensor.data.data());
    return;
  }
  mapped_.emplace(*tensor.file, tensor.offset, tensor.count() * size_of(tensor.stored));
  bytes_ = mapped_->data();
}

void check_name(const std::string& name, const std::string& what) {
  SR_REQUIRE(!name.empty(), invalid_input, what, " has no name");
  check_length(name, what);
}

void check_length(const std::string& name, const std::string& what) {
  SR_REQUIRE(name.size() <= kLongestName, invalid_input, what, " has a name of ", name.size(),
             " bytes, '", excerpt(name, 40), "', wanted at most ", kLongestName);
}

namespace {

const StoredType& type_of(const ::onnx::TensorProto& proto, const std::string& context) {
  try {
    return stored_type(proto.data_type());
  } catch (const Error& e) {
    throw e.with_context(context);
  }
}

/// The shape, whose count of elements is far from 64 bits.
Shape shape_of(const ::onnx::TensorProto& proto, const std::string& context) {
  Shape shape(proto.dims().begin(), proto.dims().end());
  for (int64_t dim : shape) {
    SR_REQUIRE(dim >= 0, invalid_input, context, " has a negative dim in its shape ",
               to_string(shape));
  }
  int64_t count = 0;
  try {
    count = element_count(shape);
  } catch (const Error&) {
    fail(ErrorKind::invalid_input, context, " of shape ", to_string(shape),
         " has more elements than 64 bits count");
  }
  SR_REQUIRE(shape.size() <= kHighestRank, unsupported, context, " has ", shape.size(),
             " dims, wanted at most ", kHighestRank);
  SR_REQUIRE(count < (int64_t{1} << 56), invalid_input, context, " of shape ", to_string(shape),
             " is too large");
  return shape;
}

/// The numbers of `out.type` from where they lie in a file: they stay there, if kernels can read
/// them so.
void store_span(StoredTensor& out, const StoredType& type, const FileSpan& span,
                ImportBudget& budget, bool stays) {
  if (type.stored && type.onnx != 9 && stays) {
    out.stored = *type.stored;
    out.file = span.file;
    out.offset = span.offset;
    return;
  }
  take_numbers(budget, type, element_count(out.type.shape));
  const MappedFile map(*span.file, span.offset, span.length);
  out.data = from_raw(map.data(), type, out.type.shape);
  out.stored = out.data.dtype();
}

void store_external(StoredTensor& out, const ::onnx::TensorProto& proto, const StoredType& type,
                    ExternalData& external, ImportBudget& budget, const std::string& context) {
  std::map<std::string, std::string> keys;
  for (const auto& entry : proto.external_data()) {
    SR_REQUIRE(keys.emplace(entry.key(), entry.value()).second, invalid_input, context,
               ": external data names '", printable(entry.key()), "' twice");
  }
  try {
    const int64_t count = element_count(out.type.shape), wanted = count * type.bytes;
    const std::shared_ptr<const InputFile>& file = external.file(keys["location"]);
    const int64_t offset = keys.count("offset") ? parse_bytes(keys["offset"], "offset") : 0;
    const int64_t length = keys.count("length") ? parse_bytes(keys["length"], "length") : wanted;
    SR_REQUIRE(length == wanted, invalid_input, "external data: length is ", length,
               " bytes, shape ", to_string(out.type.shape), " of ", type.name, " wants ", wanted);
    SR_REQUIRE(offset <= file->size() && length <= file->size() - offset, invalid_input,
               "external data: bytes ", offset, " to ", str(offset, "+", length),
               " lie past the end of '", keys["location"], "' (", file->size(), " bytes)");
    store_span(out, type, {file, offset, length}, budget, count > 0);
  } catch (const Error& e) {
    throw e.with_context(context);
  }
}

}  // namespace

StoredTensor store_tensor(const ::onnx::TensorProto& proto, ExternalData& external,
                          ImportBudget& budget, const FileSpan* raw) {
  StoredTensor out;
  out.name = proto.name();
  for (const auto& entry : proto.metadata_props()) out.metadata[entry.key()] = entry.value();
  const std::string context = str("tensor '", proto.name(), "'");
  const StoredType& type = type_of(proto, context);
  const Shape shape = shape_of(proto, context);
  SR_REQUIRE(!proto.has_segment(), unsupported, context, " is stored in segments");
  out.type = {*type.graph, shape};
  if (proto.data_location() == ::onnx::TensorProto::EXTERNAL) {
    store_external(out, proto, type, external, budget, context);
    return out;
  }
  const bool left_out = raw != nullptr;
  if (!left_out && !proto.has_raw_data()) {
    out.data = from_fields(proto, type, shape, budget);
    out.stored = out.data.dtype();
    return out;
  }
  const int64_t got = left_out ? raw->length : static_cast<int64_t>(proto.raw_data().size());
  const int64_t wanted = element_count(shape) * type.bytes;
  SR_REQUIRE(got == wanted, invalid_input, context, " has ", got, " bytes of raw_data, shape ",
             to_string(shape), " of ", type.name, " wants ", wanted);
  if (left_out) {
    store_span(out, type, *raw, budget, true);
    return out;
  }
  take_numbers(budget, type, element_count(shape));
  out.data = from_raw(proto.raw_data().data(), type, shape);
  out.stored = out.data.dtype();
  return out;
}

namespace {

void check_versions(const ::onnx::ModelProto& model) {
  SR_REQUIRE(model.has_graph() && model.ir_version() > 0, invalid_input,
             "is not an ONNX model (no graph in it)");
  SR_REQUIRE(model.ir_version() >= kOldestIr && model.ir_version() <= kNewestIr, unsupported,
             "has IR version ", model.ir_version(),
             "; supported are 7 to 14 (and 3 to 6 where nothing in the model changed since)");
  std::set<std::string> domains;
  bool standard = false;
  for (const auto& opset : model.opset_import()) {
    const std::string domain = opset.domain() == "ai.onnx" ? "" : opset.domain();
    SR_REQUIRE(domains.insert(domain).second, invalid_input, "imports operator set '",
               domain.empty() ? "ai.onnx" : domain, "' twice");
    if (!domain.empty()) continue;
    standard = true;
    SR_REQUIRE(opset.version() >= 1 && opset.version() <= kNewestOpset, unsupported, "uses opset ",
               opset.version(), "; supported are 13 to ", kNewestOpset);
  }
  SR_REQUIRE(standard || model.graph().node_size() == 0, invalid_input,
             "imports no version of the ai.onnx operators");
}

}  // namespace

ModelFile parse_model(const std::shared_ptr<const InputFile>& file,
                      const std::shared_ptr<ExternalData>& external) {
  ModelFile out;
  out.file = file;
  out.external = external;
  Skeleton skeleton = make_skeleton(file);
  out.budget = std::make_shared<ImportBudget>(file->size());
  const auto length = static_cast<int64_t>(skeleton.bytes.size());
  const int64_t parsed = parsed_bytes(skeleton.bytes, out.budget->left());
  out.budget->check(parsed + length, "parsing it");
  out.budget->take(parsed, "parsing it");
  SR_REQUIRE(out.proto.ParseFromString(skeleton.bytes), invalid_input,
             "is not an ONNX model (damaged, another format, or nested over 30 deep)");
  make_names_printable(out.proto);
  out.raws = std::move(skeleton.raws);
  return out;
}

void check_model(ModelFile& model) {
  check_versions(model.proto);
  model.budget->take(kInitialiserBytes * model.proto.graph().initializer_size(),
                     "its initialisers");
  auto* graph = model.proto.mutable_graph();
  std::set<std::string> names;
  for (int i = 0; i < graph->initializer_size(); ++i) {
    const auto& proto = graph->initializer(i);
    check_name(proto.name(), str("initialiser ", i));
    SR_REQUIRE(names.insert(proto.name()).second, invalid_input, "two initialisers are named '",
               proto.name(), "'");
    const auto raw = model.raws.find(i);
    model.initialisers.push_back(store_tensor(proto, *model.external, *model.budget,
                                              raw == model.raws.end() ? nullptr : &raw->second));
  }
  graph->clear_initializer();
  SR_REQUIRE(graph->sparse_initializer_size() == 0, unsupported,
             "has sparse initialisers; store them dense");
  model.checked = true;
}

}  // namespace shardrun::importer
