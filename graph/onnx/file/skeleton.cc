// A walk over protobuf's wire format that leaves weights on disk.
//
// A model with inline weights may exceed protobuf's 2 GB and a rank's memory. The walk copies the
// file without the raw_data of its initialisers and remembers where each of them lies:
//
//   ModelProto   = … 7: GraphProto …          every other field is copied
//   GraphProto   = … 5: TensorProto …         (initializer)
//   TensorProto  = … 9: raw_data …            longer than kInlineBytes: left out, remembered
#include "graph/onnx/file/skeleton.h"

#include <algorithm>

#include "base/error.h"
#include "graph/onnx/file/mapped_file.h"
#include "graph/onnx/file/wire.h"

namespace shardrun::importer {
namespace {

constexpr size_t kInlineBytes = 1024;
constexpr size_t kMostBytes = size_t{256} << 20;
constexpr int64_t kMostFields = 20'000'000;
constexpr int kDeepestMessage = 100;  // messages within messages, as protobuf's own limit

class SkeletonMaker {
 public:
  explicit SkeletonMaker(const std::shared_ptr<const InputFile>& from)
      : from_(from), mapped_(*from), file_(mapped_.bytes()) {}

  Skeleton make() {
    SR_REQUIRE(!file_.empty(), invalid_input, "is empty (0 bytes)");
    SR_REQUIRE(file_.substr(0, 42) != "version https://git-lfs.github.com/spec/v1", invalid_input,
               "is a Git LFS pointer, not the model; fetch it with 'git lfs pull'");
    SR_REQUIRE(file_.substr(0, 4) != std::string_view("PK\3\4"), invalid_input,
               "is a zip archive, as PyTorch's, Keras's and numpy's files are, not an ONNX model; "
               "export the model, in PyTorch with torch.onnx.export");
    out_.bytes.reserve(std::min(file_.size(), kMostBytes));
    const bool walked = for_each_field(file_, [&](uint64_t field, auto whole, auto payload) {
      if (field != 7 || !payload) return copy(out_.bytes, whole);
      std::string smaller;
      smaller.reserve(std::min(payload->size(), kMostBytes));
      return ++graphs_ == 1 && graph(*payload, smaller) && append(out_.bytes, 7, smaller);
    });
    SR_REQUIRE(walked, invalid_input, "is not an ONNX model (cut off, damaged, or another format)");
    return std::move(out_);
  }

 private:
  bool copy(std::string& to, std::string_view bytes) const {
    SR_REQUIRE(to.size() + bytes.size() <= kMostBytes, unsupported, "has more than ", kMostBytes,
               " bytes that are no initialiser's raw_data; keep numbers in initialisers, and leave "
               "out metadata");
    to += bytes;
    return true;
  }
  bool append(std::string& to, uint32_t field, const std::string& payload) const {
    append_field(to, field, payload.size());
    return copy(to, payload);
  }

  bool graph(std::string_view bytes, std::string& to) {
    return for_each_field(bytes, [&](uint64_t field, auto whole, auto payload) {
      if (field != 5 || !payload) return copy(to, whole);
      std::string smaller;
      return tensor(*payload, smaller) && append(to, 5, smaller);
    });
  }

  bool tensor(std::string_view bytes, std::string& to) {
    const int place = initialisers_++;
    return for_each_field(bytes, [&](uint64_t field, auto whole, auto payload) {
      if (field != 9 || !payload || payload->size() <= kInlineBytes) return copy(to, whole);
      out_.raws[place] = {from_, payload->data() - file_.data(),
                          static_cast<int64_t>(payload->size())};
      return true;
    });
  }

  const std::shared_ptr<const InputFile>& from_;
  const MappedFile mapped_;
  const std::string_view file_;
  Skeleton out_;
  int graphs_ = 0, initialisers_ = 0;
};

// ---- what a parsed message takes. The generated classes are lite: they have no descriptors.

enum class Type {
  model,
  graph,
  node,
  attribute,
  tensor,
  sparse_tensor,
  function,
  training,
  value_info,
  type,
  sequence,
  map,
  tensor_type,
  shape,
  annotation,
  small,  // texts and numbers, such as metadata and dims, and rarely messages of those
};

/// Of the generated class, and a pointer to it.
constexpr int64_t class_bytes(Type type) {
  switch (type) {
    case Type::model: return sizeof(::onnx::ModelProto) + sizeof(void*);
    case Type::graph: return sizeof(::onnx::GraphProto) + sizeof(void*);
    case Type::node: return sizeof(::onnx::NodeProto) + sizeof(void*);
    case Type::attribute: return sizeof(::onnx::AttributeProto) + sizeof(void*);
    case Type::tensor: return sizeof(::onnx::TensorProto) + sizeof(void*);
    case Type::function: return sizeof(::onnx::FunctionProto) + sizeof(void*);
    default: return 112;
  }
}

struct Field {
  Type of;
  uint64_t number;
  Type type;  // of the message in it
};
constexpr Field kMessages[] = {{Type::model, 7, Type::graph},
                               {Type::model, 8, Type::small},
                               {Type::model, 14, Type::small},
                               {Type::model, 20, Type::training},
                               {Type::model, 25, Type::function},
                               {Type::model, 26, Type::small},
                               {Type::graph, 1, Type::node},
                               {Type::graph, 5, Type::tensor},
                               {Type::graph, 11, Type::value_info},
                               {Type::graph, 12, Type::value_info},
                               {Type::graph, 13, Type::value_info},
                               {Type::graph, 14, Type::annotation},
                               {Type::graph, 15, Type::sparse_tensor},
                               {Type::graph, 16, Type::small},
                               {Type::node, 5, Type::attribute},
                               {Type::node, 9, Type::small},
                               {Type::node, 10, Type::small},
                               {Type::attribute, 5, Type::tensor},
                               {Type::attribute, 6, Type::graph},
                               {Type::attribute, 10, Type::tensor},
                               {Type::attribute, 11, Type::graph},
                               {Type::attribute, 14, Type::type},
                               {Type::attribute, 15, Type::type},
                               {Type::attribute, 22, Type::sparse_tensor},
                               {Type::attribute, 23, Type::sparse_tensor},
                               {Type::tensor, 3, Type::small},
                               {Type::tensor, 13, Type::small},
                               {Type::tensor, 16, Type::small},
                               {Type::sparse_tensor, 1, Type::tensor},
                               {Type::sparse_tensor, 2, Type::tensor},
                               {Type::function, 7, Type::node},
                               {Type::function, 9, Type::small},
                               {Type::function, 11, Type::attribute},
                               {Type::function, 12, Type::value_info},
                               {Type::function, 14, Type::small},
                               {Type::training, 1, Type::graph},
                               {Type::training, 2, Type::graph},
                               {Type::training, 3, Type::small},
                               {Type::training, 4, Type::small},
                               {Type::value_info, 2, Type::type},
                               {Type::value_info, 4, Type::small},
                               {Type::type, 1, Type::tensor_type},
                               {Type::type, 4, Type::sequence},
                               {Type::type, 5, Type::map},
                               {Type::type, 7, Type::small},
                               {Type::type, 8, Type::tensor_type},
                               {Type::type, 9, Type::sequence},
                               {Type::sequence, 1, Type::type},
                               {Type::map, 2, Type::type},
                               {Type::tensor_type, 2, Type::shape},
                               {Type::shape, 1, Type::small},
                               {Type::annotation, 2, Type::small}};

const Field* find_message(Type of, uint64_t number) {
  for (const Field& field : kMessages) {
    if (field.of == of && field.number == number) return &field;
  }
  return nullptr;
}

class ParsedBytes {
 public:
  explicit ParsedBytes(int64_t most) : most_(most) {}

  int64_t bytes() const { return bytes_; }

  bool add(std::string_view message, Type type, int depth) {
    bytes_ += class_bytes(type);
    return depth < kDeepestMessage &&
           for_each_field(message, [&](uint64_t number, auto, auto payload) {
             SR_REQUIRE(++fields_ <= kMostFields, unsupported, "has more than ", kMostFields,
                        " fields; keep numbers in initialisers' raw_data, and leave out metadata");
             const Field* field = payload ? find_message(type, number) : nullptr;
             if (field != nullptr && !add(*payload, field->type, depth + 1)) return false;
             if (field == nullptr) bytes_ += payload ? bytes_of(type, number, *payload) : kNumber;
             return bytes_ <= most_;
           });
  }

 private:
  // A number of one byte takes eight, in an array that doubles as it grows.
  static constexpr int64_t kNumber = 16, kText = 64;

  static int64_t bytes_of(Type type, uint64_t number, std::string_view payload) {
    const auto length = static_cast<int64_t>(payload.size());
    const bool integers =
        (type == Type::tensor && (number == 1 || number == 5 || number == 7 || number == 11)) ||
        (type == Type::attribute && number == 8) || type == Type::small;
    if (!integers) return kText + length;
    // What is no text may be messages, of at least two bytes each.
    if (type == Type::small)
      return kText + length + (is_text(payload) ? 0 : class_bytes(type) / 2 * length);
    return kNumber * std::count_if(payload.begin(), payload.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  }
  static bool is_text(std::string_view payload) {
    return std::all_of(payload.begin(), payload.end(), [](char c) {
      return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t' || c == '\r';
    });
  }

  int64_t most_, bytes_ = 0, fields_ = 0;
};

}  // namespace

Skeleton make_skeleton(const std::shared_ptr<const InputFile>& file) {
  return SkeletonMaker(file).make();
}

int64_t parsed_bytes(const ::onnx::NodeProto& node, int64_t most) {
  ParsedBytes counted(most);
  counted.add(node.SerializeAsString(), Type::node, 0);
  return counted.bytes();
}

int64_t parsed_bytes(std::string_view skeleton, int64_t most) {
  ParsedBytes counted(most);
  counted.add(skeleton, Type::model, 0);
  return counted.bytes();
}

}  // namespace shardrun::importer
