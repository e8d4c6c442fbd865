// Array data: samples along dim 0 of numpy arrays, one array per batch input.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/tensor.h"
#include "exec/data_internal.h"

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

/// Which integers a field takes: its bound's, or what its dtype can hold.
std::pair<int64_t, int64_t> legal_range(const BatchField& field) {
  if (field.bound > 0) return {0, field.bound - 1};
  switch (field.type.dtype) {
    case DType::i8: return {-128, 127};
    case DType::u8: return {0, 255};
    case DType::i32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
}

class ArraySource : public DataSource {
 public:
  ArraySource(std::string spec, std::vector<BatchField> fields, std::vector<StoredArray> arrays,
              const DataOptions& options)
      : spec_(std::move(spec)),
        fields_(std::move(fields)),
        arrays_(std::move(arrays)),
        options_(options) {
    whole_ = true;
    for (size_t i = 0; i < fields_.size(); ++i) {
      check_dtype(fields_[i], arrays_[i]);
      whole_ = whole_ && arrays_[i].shape == fields_[i].type.shape;
    }
    if (!whole_) place_samples();
  }

  void read(int64_t batch, bool validation, const BatchField& field, const Box& box,
            void* out) const override {
    if (is_empty(box)) return;
    size_t which = 0;
    while (which < fields_.size() && fields_[which].name != field.name) ++which;
    SR_REQUIRE(which < fields_.size(), internal, "batch input '", field.name, "' was not opened");
    const StoredArray& array = arrays_[which];
    const Shape& shape = field.type.shape;
    // Runs of elements that lie side by side in the file: whole trailing dims, then one range.
    size_t run_dim = shape.size();
    int64_t run = 1;
    while (run_dim > 0) {
      --run_dim;
      run *= box[run_dim].size;
      if (box[run_dim].size != shape[run_dim]) break;
      if (run_dim == 1 && !whole_) break;  // samples lie apart
    }
    if (shape.size() == 1 && !whole_) run = 1;
    const int64_t sample_elements =
        shape.empty() ? 1 : element_count(shape) / std::max<int64_t>(1, shape[0]);
    const int64_t element = size_of(field.type.dtype);
    int64_t wait = 0;
    for_box(shape, box, [&](int64_t index, int64_t i) {
      if (wait-- > 0) return;
      wait = run - 1;
      int64_t from = index;
      if (!whole_) {
        const int64_t sample = batch * shape[0] + index / sample_elements;
        from =
            (validation ? validation_sample(sample) : training_sample(sample)) * sample_elements +
            index % sample_elements;
      }
      load_elements(array, from, run, field, static_cast<char*>(out) + i * element);
    });
  }

  int64_t validation_batches() const override { return validation_batches_; }

  std::string describe() const override {
    if (whole_) return str(spec_, ": one batch, the same each step");
    return str(spec_, ": ", samples_, " samples, ", training_, " to train, ", samples_ - training_,
               " to validate");
  }

 private:
  static void check_dtype(const BatchField& field, const StoredArray& array) {
    const bool floats = is_float(format_of(array).dtype);
    SR_REQUIRE(!floats || is_float(field.type.dtype), invalid_input, array.name, ": elements are '",
               array.format, "', but the model's input '", field.name, "' is ", field.type,
               "; convert with astype");
  }

  void place_samples() {
    for (size_t i = 0; i < fields_.size(); ++i) {
      const Shape& want = fields_[i].type.shape;
      const Shape& got = arrays_[i].shape;
      const bool fits = !want.empty() && got.size() == want.size() &&
                        std::equal(want.begin() + 1, want.end(), got.begin() + 1);
      SR_REQUIRE(fits, invalid_input, arrays_[i].name, ": shape is ", to_string(got),
                 ", but the model's input '", fields_[i].name, "' is ", to_string(want),
                 "; wanted [samples", want.size() > 1 ? ", then the input's dims" : "", "]");
      const int64_t samples = got[0];
      SR_REQUIRE(i == 0 || samples == samples_, invalid_input, arrays_[i].name, ": ", samples,
                 " samples, but ", arrays_[0].name, " has ", samples_);
      SR_REQUIRE(i == 0 || want[0] == fields_[0].type.shape[0], invalid_input, "--data ", spec_,
                 ": inputs '", fields_[0].name, "' and '", fields_[i].name, "' have batches of ",
                 fields_[0].type.shape[0], " and ", want[0]);
      samples_ = samples;
    }
    SR_REQUIRE(samples_ > 0, invalid_input, arrays_[0].name, ": has no samples");
    int64_t validation =
        static_cast<int64_t>(options_.validation_fraction * static_cast<double>(samples_));
    if (options_.validation_fraction > 0 && validation == 0 && samples_ > 1) validation = 1;
    training_ = samples_ - validation;
    const int64_t batch = std::max<int64_t>(1, fields_[0].type.shape[0]);
    if (validation == 0) return;
    validation_batches_ = std::clamp(validation / batch, int64_t{1},
                                     std::max<int64_t>(1, options_.max_validation_batches));
  }

  int64_t training_sample(int64_t sample) const {
    const int64_t epoch = sample / training_;
    return Permutation(training_, options_.seed, data_stream("order"),
                       static_cast<uint64_t>(epoch))(sample % training_);
  }

  int64_t validation_sample(int64_t sample) const {
    const int64_t wanted = validation_batches_ * fields_[0].type.shape[0];
    return training_ + sample * (samples_ - training_) / wanted;
  }

  std::string spec_;
  std::vector<BatchField> fields_;
  std::vector<StoredArray> arrays_;
  DataOptions options_;
  bool whole_ = false;
  int64_t samples_ = 0, training_ = 0, validation_batches_ = 0;
};

}  // namespace

int64_t StoredArray::element_bytes() const { return format_of(*this).bytes; }

void load_elements(const StoredArray& array, int64_t begin, int64_t count, const BatchField& field,
                   void* out) {
  const NumpyFormat& format = format_of(array);
  const unsigned char* from = array.data + begin * format.bytes;
  const DType to = field.type.dtype;
  const auto [low, high] = legal_range(field);
  const bool check = !is_float(to) && to != DType::boolean && (field.bound > 0 || to != DType::i64);
  // In blocks: widened values and the copy that aligns the source stay in cache. numpy aligns an
  // array's start in its file, but not in a zip file.
  constexpr int64_t kBlock = 1024;
  alignas(8) int64_t block[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    const unsigned char* source = from + done * format.bytes;
    if (format.widened) {
      widen(format, source, n, block);
    } else {
      std::memcpy(block, source, static_cast<size_t>(n * format.bytes));
    }
    if (check) {
      int64_t values[kBlock];
      convert(block, format.dtype, values, DType::i64, n);
      for (int64_t i = 0; i < n; ++i) {
        const bool ignored = field.role == BatchField::Role::target && values[i] == field.ignore;
        SR_REQUIRE(ignored || (values[i] >= low && values[i] <= high), invalid_input, array.name,
                   ": element ", begin + done + i, " is ", values[i], ", but the model's input '",
                   field.name, "' takes ", low, " to ", high);
      }
    }
    convert(block, format.dtype, static_cast<char*>(out) + done * size_of(to), to, n);
  }
}

std::unique_ptr<DataSource> make_array_source(const std::string& spec,
                                              std::vector<BatchField> fields,
                                              std::vector<StoredArray> arrays,
                                              const DataOptions& options) {
  return std::make_unique<ArraySource>(spec, std::move(fields), std::move(arrays), options);
}

}  // namespace shardrun
