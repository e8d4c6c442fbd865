// Elements of stored arrays: their formats, conversion, and bounds.
#include "exec/data/data_files.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/tensor.h"

namespace shardrun {
namespace {

struct NumpyFormat {
  const char* format;
  int bytes;
  DType dtype;   // what it is read as
  bool widened;  // integers that DType does not know are widened to i64 first
};

// numpy's codes: < little-endian, | one byte, i signed, u unsigned, f float, b bool.
constexpr NumpyFormat kFormats[] = {
    {"<f2", 2, DType::f16, false}, {"<f4", 4, DType::f32, false}, {"<f8", 8, DType::f64, false},
    {"|i1", 1, DType::i8, false},  {"|u1", 1, DType::u8, false},  {"|b1", 1, DType::boolean, false},
    {"<i4", 4, DType::i32, false}, {"<i8", 8, DType::i64, false}, {"<i2", 2, DType::i64, true},
    {"<u2", 2, DType::i64, true},  {"<u4", 4, DType::i64, true},  {"<u8", 8, DType::i64, true}};

const NumpyFormat& format_of(const StoredArray& array) {
  for (const NumpyFormat& f : kFormats) {
    if (array.format == f.format) return f;
  }
  std::string known;
  for (const NumpyFormat& f : kFormats) known += std::string(known.empty() ? "" : ", ") + f.format;
  fail(ErrorKind::unsupported, array.name, ": elements are '", array.format, "', wanted one of ",
       known, "; convert with astype");
}

template <class T>
void widen(const unsigned char* from, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    to[i] = static_cast<int64_t>(value);
  }
}

void widen(const NumpyFormat& format, const unsigned char* from, int64_t count, int64_t* to) {
  const std::string_view code = format.format;
  if (code == "<i2") return widen<int16_t>(from, count, to);
  if (code == "<u2") return widen<uint16_t>(from, count, to);
  if (code == "<u4") return widen<uint32_t>(from, count, to);
  return widen<uint64_t>(from, count, to);
}

/// Which integers a field, or one of its columns, takes: its bound's, or what its dtype can hold.
std::pair<int64_t, int64_t> legal_range(const BatchField& field, int64_t bound) {
  if (bound > 0) return {0, bound - 1};
  switch (field.type.dtype) {
    case DType::i8: return {-128, 127};
    case DType::u8: return {0, 255};
    case DType::i32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
}

/// Calls f(elements done, elements now, values) block by block, with what is stored as elements of
/// format.dtype, aligned. numpy aligns an array's start in its file, but not in a zip file; and its
/// booleans may be any byte (mask.view(bool)), of which ours are 0 and 1.
constexpr int64_t kBlock = 1024;
template <class F>
void for_blocks(const NumpyFormat& format, const unsigned char* from, int64_t count, F&& f) {
  alignas(8) int64_t block[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    const unsigned char* source = from + done * format.bytes;
    if (format.widened) {
      widen(format, source, n, block);
    } else {
      std::memcpy(block, source, static_cast<size_t>(n * format.bytes));
    }
    if (format.dtype == DType::boolean) {
      auto* bytes = reinterpret_cast<unsigned char*>(block);
      std::transform(bytes, bytes + n, bytes, [](unsigned char b) { return b != 0 ? 1 : 0; });
    }
    f(done, n, static_cast<const void*>(block));
  }
}

}  // namespace

int64_t StoredArray::element_bytes() const { return format_of(*this).bytes; }

int64_t StoredArray::sample_elements() const {
  int64_t count = 1;
  for (size_t d = 1; d < shape.size(); ++d) count *= shape[d];
  return count;
}

const unsigned char* StoredArray::sample(int64_t i) const {
  return data + i * (stride > 0 ? stride : sample_elements() * element_bytes());
}

namespace {

/// Numbers of 64 bits without a sign are read as if they had one.
void require_signed(const StoredArray& array, const unsigned char* from, int64_t first,
                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t value;
    std::memcpy(&value, from + i * 8, 8);
    SR_REQUIRE(value >> 63 == 0, invalid_input, array.name, ": element ", first + i, " is ", value,
               ", which does not fit i64");
  }
}

}  // namespace

bool is_float_format(const StoredArray& array) { return is_float(format_of(array).dtype); }

void load_elements(const StoredArray& array, const unsigned char* from, int64_t first,
                   int64_t count, const BatchField& field, void* out) {
  const NumpyFormat& format = format_of(array);
  if (array.format == "<u8") require_signed(array, from, first, count);
  const DType to = field.type.dtype;
  const std::vector<int64_t>& bounds = field.column_bounds;
  const auto columns = std::max<int64_t>(1, std::ssize(bounds));
  const bool check = !is_float(to) && to != DType::boolean && (field.bound > 0 || to != DType::i64);
  for_blocks(format, from, count, [&](int64_t done, int64_t n, const void* block) {
    if (check) {
      int64_t values[kBlock];
      convert(block, format.dtype, values, DType::i64, n);
      for (int64_t i = 0; i < n; ++i) {
        const bool ignored = field.role == BatchField::Role::target && values[i] == field.ignore;
        const int64_t column = (first + done + i) % columns;
        const auto [low, high] =
            legal_range(field, bounds.empty() ? field.bound : bounds[static_cast<size_t>(column)]);
        SR_REQUIRE(ignored || (values[i] >= low && values[i] <= high), invalid_input, array.name,
                   ": element ", first + done + i, " is ", values[i], ", but ",
                   columns > 1 ? str("column ", column, " of ") : "", "the model's input '",
                   field.name, "' takes ", low, " to ", high);
      }
    }
    convert(block, format.dtype, static_cast<char*>(out) + done * size_of(to), to, n);
  });
}

void load_floats(const StoredArray& array, const unsigned char* from, int64_t count, float* out) {
  const NumpyFormat& format = format_of(array);
  for_blocks(format, from, count, [&](int64_t done, int64_t n, const void* block) {
    convert(block, format.dtype, out + done, DType::f32, n);
  });
}

void Samples::append(StoredArray array) {
  if (!parts_.empty()) {
    const StoredArray& one = parts_.front();
    const bool same = !array.shape.empty() && array.format == one.format &&
                      array.shape.size() == one.shape.size() &&
                      std::equal(array.shape.begin() + 1, array.shape.end(), one.shape.begin() + 1);
    SR_REQUIRE(same, invalid_input, array.name, ": is ", to_string(array.shape), " of '",
               array.format, "', but ", one.name, " is ", to_string(one.shape), " of '", one.format,
               "'; they must have samples of one kind");
  }
  count_ += array.shape.empty() ? 1 : array.shape[0];
  parts_.push_back(std::move(array));
}

Shape Samples::shape() const {
  Shape out = parts_.front().shape;
  if (!out.empty()) out[0] = count_;
  return out;
}

std::pair<const StoredArray*, int64_t> Samples::find(int64_t i) const {
  size_t part = 0;
  while (part + 1 < parts_.size() && i >= parts_[part].shape[0]) i -= parts_[part++].shape[0];
  return {&parts_[part], i};
}

}  // namespace shardrun
