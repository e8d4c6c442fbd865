#include "graph/onnx/file/byte_edits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/tensor.h"
#include "graph/onnx/file/wire.h"

namespace shardrun::importer {
namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements
constexpr int64_t kBlock = int64_t{1} << 20;  // bytes

/// As fields of integers have it: negative ones are 64 bits long, 16-bit floats their bits.
void append_number(std::string& to, const char* element, DType dtype) {
  uint64_t bits = 0;
  if (is_float(dtype)) {
    std::memcpy(&bits, element, static_cast<size_t>(size_of(dtype)));
  } else {
    convert(element, dtype, &bits, DType::i64, 1);
  }
  append_varint(to, bits);
}

void check_range(const std::string& name, const char* made, DType from, const char* stored,
                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if ((reinterpret_cast<const uint16_t*>(stored)[i] & 0x7fffu) != 0x7c00u) continue;
    float value = 0;
    convert(made + i * size_of(from), from, &value, DType::f32, 1);
    SR_REQUIRE(std::isinf(value), unsupported, "'", name,
               "' is stored as float16, which does not hold its ", value,
               "; export the model in float32 or bfloat16");
  }
}

}  // namespace

void each_block(const Stream& stream, const std::function<void(const char*, int64_t)>& put) {
  const Numbers& numbers = *stream.numbers;
  const int64_t count = element_count(numbers.type.shape), width = size_of(stream.as);
  const DType made = numbers.type.dtype;
  const auto most = static_cast<size_t>(std::min(count, kChunk));
  std::vector<char> as_made(most * static_cast<size_t>(size_of(made))),
      as_stored(most * static_cast<size_t>(width));
  std::string text;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = std::min(kChunk, count - first);
    numbers.read(first, some, as_made.data());
    convert(as_made.data(), made, as_stored.data(), stream.as, some);
    if (stream.as == DType::f16)
      check_range(stream.name, as_made.data(), made, as_stored.data(), some);
    if (!stream.varints) {
      put(as_stored.data(), some * width);
      continue;
    }
    text.clear();
    for (int64_t i = 0; i < some; ++i) append_number(text, as_stored.data() + i * width, stream.as);
    put(text.data(), static_cast<int64_t>(text.size()));
  }
}

Stream make_stream(const Numbers& numbers, const std::string& name, DType as, bool varints) {
  Stream out{&numbers, name, as, varints, 0};
  if (varints) {
    each_block(out, [&](const char*, int64_t bytes) { out.bytes += bytes; });
  } else {
    out.bytes = element_count(numbers.type.shape) * size_of(as);
  }
  return out;
}

void copy_with(const InputFile& from, const std::vector<Edit>& edits, std::ostream& to) {
  std::vector<char> block(static_cast<size_t>(kBlock));
  int64_t at = 0;
  const auto copy_until = [&](int64_t place) {
    while (at < place && to.good()) {
      const int64_t some = std::min(place - at, kBlock);
      from.read(at, some, block.data());
      to.write(block.data(), some);
      at += some;
    }
  };
  for (const Edit& edit : edits) {
    copy_until(edit.at);
    if (!to.good()) return;  // the disk is full: who finishes the file says so
    to << edit.text;
    if (edit.stream)
      each_block(*edit.stream, [&](const char* data, int64_t bytes) { to.write(data, bytes); });
    at = edit.at + edit.removed;
  }
  SR_REQUIRE(at <= from.size(), invalid_input, from.path(), ": was cut off while it was copied");
  copy_until(from.size());
}

}  // namespace shardrun::importer
