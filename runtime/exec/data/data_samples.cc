// Samples along dim 0 of arrays, one array per batch input, in a shuffled order.
#include <algorithm>

#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_readers.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

// Integers of data sets up to this size are checked against their bounds when they are opened,
// others as they are read.
constexpr int64_t kCheckAtOpen = 16 << 20;

/// [samples, dims of the field but the first]; [samples, H, W] are images of one channel.
bool fits(const Shape& want, const Shape& got, bool image) {
  if (want.empty() || got.empty()) return false;
  Shape wanted(want.begin() + 1, want.end());
  const Shape have(got.begin() + 1, got.end());
  if (image && want.size() == 4 && want[1] == 1 && have.size() == 2) wanted.erase(wanted.begin());
  return wanted == have;
}

/// What makes an array fit that was stored in another way, if one of the usual ones shows.
std::string how_to_fit(const BatchField& field, const Shape& got) {
  if (const std::string advice = one_hot_advice(field, got); !advice.empty()) return advice;
  const Shape& want = field.type.shape;
  const size_t dims = want.size();
  if (dims < 3 || got.size() != dims) return "";
  Shape last(want.begin() + 2, want.end());
  last.push_back(want[1]);
  if (!std::equal(last.begin(), last.end(), got.begin() + 1)) return "";
  std::string order = str("0, ", dims - 1);
  for (size_t d = 1; d + 1 < dims; ++d) order += str(", ", d);
  return str("; channels come first: transpose(", order, ")");
}

class SampleSource : public DataSource {
 public:
  SampleSource(ArrayData data, std::vector<BatchField> fields, const DataOptions& options)
      : spec_(data.spec), fields_(std::move(fields)), order_(make_order(data, options)) {
    check_transforms(spec_, fields_, options);
    for (size_t i = 0; i < fields_.size(); ++i) {
      const BatchField& field = fields_[i];
      if (takes_images(field) && (data.images || changes_images(options))) {
        readers_.push_back(image_reader(data.arrays[i], field, order_.split(), options));
      } else if (takes_rows(field) && normalises_rows(options)) {
        readers_.push_back(row_reader(data.arrays[i], field));
      } else {
        readers_.push_back(plain_reader(data.arrays[i], field));
      }
      check_values(data.arrays[i], field);
    }
    arrays_ = std::move(data.arrays);
  }

  void read(int64_t batch, Split split, const BatchField& field, const Box& box,
            void* out) const override {
    if (is_empty(box)) return;
    const size_t which = number_of(field);
    const std::span inner = std::span(box).subspan(1);
    const int64_t elements = count_in(inner);
    const int64_t width = size_of(field.type.dtype), rows = field.type.shape[0];
    auto* to = static_cast<char*>(out);
    for (int64_t row = box[0].begin; row < box[0].begin + box[0].size; ++row) {
      const SampleOrder::Pick pick = order_.pick(split, batch, row);
      if (pick.padding && field.role == BatchField::Role::target) {
        for (int64_t i = 0; i < elements; ++i)
          store_integer(to, field.type.dtype, i, *field.ignore);
      } else {
        readers_[which]->read({pick.sample, split, batch * rows + row}, inner, to);
      }
      to += elements * width;
    }
  }

  std::string origin(int64_t batch, Split split, const BatchField& field,
                     int64_t row) const override {
    const auto [array, at] = arrays_[number_of(field)].find(order_.pick(split, batch, row).sample);
    return str(array->name, ", row ", at);
  }

  int64_t batches(Split split) const override { return order_.batches(split); }

  std::string describe() const override {
    const SampleSplit& split = order_.split();
    const int64_t train = split.size(Split::training), validate = split.size(Split::validation),
                  test = split.size(Split::test);
    return str(spec_, ": ", train + validate + test, " samples, ", train, " to train, ", validate,
               " to validate", test > 0 ? str(", ", test, " to test") : "",
               without_validation(validate, test), few_samples(train, order_.batch()));
  }

 private:
  size_t number_of(const BatchField& field) const {
    size_t which = 0;
    while (which < fields_.size() && fields_[which].name != field.name) ++which;
    SR_REQUIRE(which < fields_.size(), internal, "batch input '", field.name, "' was not opened");
    return which;
  }

  SampleOrder make_order(const ArrayData& data, const DataOptions& options) {
    const bool image = data.images || changes_images(options);
    bool pad = false, labelled = true;
    int64_t samples = 0;
    for (size_t i = 0; i < fields_.size(); ++i) {
      const BatchField& field = fields_[i];
      const Shape &want = field.type.shape, got = data.arrays[i].shape();
      const std::string& name = data.arrays[i].first().name;
      SR_REQUIRE(fits(want, got, image), invalid_input, name, ": shape is ", to_string(got),
                 ", but the model's input '", field.name, "' is ", to_string(want),
                 "; wanted [samples", want.size() > 1 ? ", then the input's dims" : "", "]",
                 how_to_fit(field, got));
      SR_REQUIRE(i == 0 || got[0] == samples, invalid_input, name, ": ", got[0], " samples, but ",
                 data.arrays[0].first().name, " has ", samples);
      SR_REQUIRE(want[0] == fields_[0].type.shape[0], invalid_input, "--data ", data.spec,
                 ": inputs '", fields_[0].name, "' and '", field.name, "' have batches of ",
                 fields_[0].type.shape[0], " and ", want[0]);
      samples = got[0];
      if (field.role != BatchField::Role::target) continue;
      pad = true;
      labelled = labelled && field.ignore.has_value() && !is_float(field.type.dtype);
    }
    SR_REQUIRE(samples > 0, invalid_input, data.arrays[0].first().name, ": has no samples");
    const int64_t batch = fields_[0].type.shape[0];
    return {make_split(data, samples, batch, options), batch, pad && labelled, options};
  }

  static SampleSplit make_split(const ArrayData& data, int64_t samples, int64_t batch,
                                const DataOptions& options) {
    if (data.masks) return SampleSplit(*data.masks);
    const int64_t rest = samples - data.test;
    SR_REQUIRE(rest > 0, invalid_input, "--data ", data.spec, ": has no samples to train on");
    int64_t validation =
        static_cast<int64_t>(options.validation_fraction * static_cast<double>(rest));
    if (options.validation_fraction > 0 && validation == 0 && rest > 1) validation = 1;
    const int64_t training = rest - validation;
    SR_REQUIRE(training >= std::min(batch, rest / 4), invalid_input, "--data ", data.spec,
               ": --validation leaves ", training, " of ", rest,
               " samples to train on, fewer than a batch of ", batch, "; lower it");
    return {rest - validation, validation, data.test};
  }

  static void check_values(const Samples& samples, const BatchField& field) {
    const int64_t elements = element_count(samples.shape());
    if (is_float(field.type.dtype) || elements > kCheckAtOpen) return;
    const int64_t each = samples.first().sample_elements();
    std::vector<char> spare(static_cast<size_t>(each * size_of(field.type.dtype)));
    for (int64_t n = 0; n < samples.count(); ++n) {
      const auto [array, i] = samples.find(n);
      load_elements(*array, array->sample(i), i * each, each, field, spare.data());
    }
  }

  std::string spec_;
  std::vector<BatchField> fields_;
  std::vector<Samples> arrays_;
  SampleOrder order_;
  std::vector<std::unique_ptr<SampleReader>> readers_;
};

}  // namespace

std::string one_hot_advice(const BatchField& field, const Shape& array) {
  const bool classes = field.role == BatchField::Role::target && !is_float(field.type.dtype) &&
                       array.size() == field.type.shape.size() + 1 && array.back() == field.bound;
  return classes ? "; of one-hot labels take the classes: argmax(-1)" : "";
}

std::unique_ptr<DataSource> make_sample_source(ArrayData data, std::vector<BatchField> fields,
                                               const DataOptions& options) {
  return std::make_unique<SampleSource>(std::move(data), std::move(fields), options);
}

}  // namespace shardrun
