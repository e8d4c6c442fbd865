// Readers of samples as they are stored, and of rows that are scaled to a sum of 1.
#include "exec/data/data_readers.h"

#include <algorithm>
#include <array>

#include "base/tensor.h"
#include "exec/data/data_internal.h"

namespace shardrun {
namespace {

Shape inner_shape(const BatchField& field) {
  const Shape& shape = field.type.shape;
  return shape.empty() ? shape : Shape(shape.begin() + 1, shape.end());
}

/// Calls f(first element within the sample, elements, position in the output) for each run of
/// elements that lie side by side.
template <class F>
void for_runs(const Shape& shape, std::span<const Range> box, F&& f) {
  int64_t run = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    run *= box[d].size;
    if (box[d].size != shape[d]) break;
  }
  int64_t wait = 0;
  for_box(shape, box, [&](int64_t index, int64_t i) {
    if (wait-- > 0) return;
    wait = run - 1;
    f(index, run, i);
  });
}

class PlainReader : public SampleReader {
 public:
  PlainReader(const Samples& samples, const BatchField& field)
      : samples_(samples), field_(field), shape_(inner_shape(field)) {}

  void read(const SamplePlace& place, std::span<const Range> box, void* out) const override {
    const auto [array, i] = samples_.find(place.sample);
    const unsigned char* from = array->sample(i);
    const int64_t width = array->element_bytes(), to = size_of(field_.type.dtype);
    const int64_t first = i * array->sample_elements();
    for_runs(shape_, box, [&, a = array](int64_t index, int64_t count, int64_t at) {
      load_elements(*a, from + index * width, first + index, count, field_,
                    static_cast<char*>(out) + at * to);
    });
  }

 private:
  Samples samples_;
  BatchField field_;
  Shape shape_;
};

class RowReader : public SampleReader {
 public:
  RowReader(const Samples& samples, const BatchField& field) : samples_(samples), field_(field) {
    SR_REQUIRE(field.type.shape.size() == 2 && is_float(field.type.dtype), invalid_input,
               "normalise rows: input '", field.name, "' is ", field.type,
               ", wanted floating rows [samples, values]");
    std::vector<float> row(static_cast<size_t>(field.type.shape[1]));
    for (int64_t n = 0; n < samples.count(); ++n) {
      const auto [array, i] = samples.find(n);
      load_floats(*array, array->sample(i), field.type.shape[1], row.data());
      double sum = 0;
      for (float v : row) sum += static_cast<double>(v);
      sums_.push_back(sum != 0 ? static_cast<float>(sum) : 1.0F);
    }
  }

  void read(const SamplePlace& place, std::span<const Range> box, void* out) const override {
    const auto [array, i] = samples_.find(place.sample);
    const float sum = sums_[static_cast<size_t>(place.sample)];
    auto* to = static_cast<char*>(out);
    std::array<float, 512> some;
    for (int64_t at = 0; at < box[0].size; at += std::ssize(some)) {
      const int64_t n = std::min(box[0].size - at, std::ssize(some));
      load_floats(*array, array->sample(i) + (box[0].begin + at) * array->element_bytes(), n,
                  some.data());
      for (int64_t j = 0; j < n; ++j) some[static_cast<size_t>(j)] /= sum;
      convert(some.data(), DType::f32, to, field_.type.dtype, n);
      to += n * size_of(field_.type.dtype);
    }
  }

 private:
  Samples samples_;
  BatchField field_;
  std::vector<float> sums_;  // of each sample's values; 1 for a sum of 0
};

}  // namespace

std::unique_ptr<SampleReader> plain_reader(const Samples& samples, const BatchField& field) {
  return std::make_unique<PlainReader>(samples, field);
}

std::unique_ptr<SampleReader> row_reader(const Samples& samples, const BatchField& field) {
  return std::make_unique<RowReader>(samples, field);
}

}  // namespace shardrun
