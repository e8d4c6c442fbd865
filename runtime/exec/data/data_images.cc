// Images: random crops and flips, and scaling, element by element of the box that is asked for.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/named.h"
#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_readers.h"

namespace shardrun {
namespace {

struct Augmentation {
  int64_t crop = 0;  // pixels around the image
  bool flip = false;
};

bool augments(const std::string& text) { return !text.empty() && text != "none"; }

Augmentation parse_augmentation(const std::string& text) {
  Augmentation out;
  if (!augments(text)) return out;
  for (const std::string& part : split_text(text, ',')) {
    if (part == "flip") {
      out.flip = true;
      continue;
    }
    int64_t pixels = 0;
    const bool crop = part.rfind("crop=", 0) == 0;
    const auto [end, error] =
        std::from_chars(part.data() + (crop ? 5 : 0), part.data() + part.size(), pixels);
    SR_REQUIRE(crop && error == std::errc() && end == part.data() + part.size() && pixels >= 1 &&
                   pixels <= 1 << 20,
               invalid_input, "augment '", text, "': '", part,
               "' is neither crop=PIXELS, at least 1, nor flip");
    out.crop = pixels;
  }
  return out;
}

/// value -> (value - mean) / deviation, a pair for each channel or one for all.
struct Scaling {
  std::vector<float> mean, deviation;
};

std::vector<float> parse_numbers(const std::string& text, const std::string& whole) {
  std::vector<float> out;
  for (const std::string& part : split_text(text, ',')) {
    float value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    SR_REQUIRE(error == std::errc() && end == part.data() + part.size() && std::isfinite(value),
               invalid_input, "normalise '", whole, "': '", part, "' is not a number");
    out.push_back(value);
  }
  return out;
}

Scaling parse_scaling(const std::string& text) {
  const std::vector<std::string> halves = split_text(text, '/');
  SR_REQUIRE(halves.size() == 2, invalid_input, "normalise '", text,
             "' is not one of none, rows, data, MEAN/DEVIATION (a number for each channel, with "
             "commas)");
  Scaling out{parse_numbers(halves[0], text), parse_numbers(halves[1], text)};
  SR_REQUIRE(out.mean.size() == out.deviation.size(), invalid_input, "normalise '", text,
             "': ", out.mean.size(), " means, but ", out.deviation.size(), " deviations");
  for (float d : out.deviation) {
    SR_REQUIRE(d > 0, invalid_input, "normalise '", text, "': deviation ", d, ", wanted above 0");
  }
  return out;
}

/// By what values are scaled.
enum class Normalise { off, rows, data, numbers };
constexpr Named<Normalise> kNormalise[] = {{"", Normalise::off},
                                           {"none", Normalise::off},
                                           {"rows", Normalise::rows},
                                           {"data", Normalise::data}};

Normalise normalise_of(const DataOptions& options) {
  return kind_named(kNormalise, options.normalise).value_or(Normalise::numbers);
}

class ImageReader : public SampleReader {
 public:
  ImageReader(const Samples& samples, const BatchField& field, const SampleSplit& split,
              const DataOptions& options)
      : samples_(samples),
        field_(field),
        seed_(options.seed),
        augmentation_(parse_augmentation(options.augment)),
        unit_(samples.first().format == "|u1" ? 1.0F / 255 : 1.0F) {
    const Shape& shape = field.type.shape;
    SR_REQUIRE(shape.size() == 4 && is_float(field.type.dtype), invalid_input, "augment '",
               options.augment, "', normalise '", options.normalise, "': input '", field.name,
               "' is ", field.type, ", wanted floating images [samples, channels, height, width]");
    channels_ = shape[1];
    height_ = shape[2];
    width_ = shape[3];
    switch (normalise_of(options)) {
      case Normalise::data: measure(split); break;
      case Normalise::numbers: scaling_ = parse_scaling(options.normalise); break;
      case Normalise::rows:  // of matrices
      case Normalise::off: scaling_ = {{0}, {1}};
    }
    const auto given = static_cast<int64_t>(scaling_.mean.size());
    SR_REQUIRE(given == 1 || given == channels_, invalid_input, "normalise '", options.normalise,
               "': ", given, " channels, but input '", field.name, "' has ", channels_);
    scaling_.mean.resize(static_cast<size_t>(channels_), scaling_.mean[0]);
    scaling_.deviation.resize(static_cast<size_t>(channels_), scaling_.deviation[0]);
  }

  void read(const SamplePlace& place, std::span<const Range> box, void* out) const override {
    // The output's pixel (y, x) is the stored (y + down, x' + right), x' being x from the other
    // side in a flipped image; outside of the image there is black.
    int64_t down = 0, right = 0;
    bool flip = false;
    if (place.split == Split::training) {
      const RandomStream random{seed_, data_stream("augment"),
                                static_cast<uint64_t>(place.position)};
      const auto words = random.block(0);
      const auto below = [](uint32_t word, int64_t n) {
        return static_cast<int64_t>(static_cast<uint64_t>(word) * static_cast<uint64_t>(n) >> 32);
      };
      const int64_t crop = augmentation_.crop;
      down = below(words[0], 2 * crop + 1) - crop;
      right = below(words[1], 2 * crop + 1) - crop;
      flip = augmentation_.flip && (words[2] >> 31) != 0;
    }
    const auto [array, i] = samples_.find(place.sample);
    const unsigned char* image = array->sample(i);
    const int64_t element = array->element_bytes();
    ShortArray<float, 512> stored(static_cast<size_t>(width_)),
        made(static_cast<size_t>(box[2].size));
    auto* to = static_cast<char*>(out);
    for (int64_t c = box[0].begin; c < box[0].begin + box[0].size; ++c) {
      const float mean = scaling_.mean[static_cast<size_t>(c)];
      const float deviation = scaling_.deviation[static_cast<size_t>(c)];
      for (int64_t y = box[1].begin; y < box[1].begin + box[1].size; ++y) {
        const int64_t row = y + down;
        const bool inside = row >= 0 && row < height_;
        if (inside) {
          load_floats(*array, image + (c * height_ + row) * width_ * element, width_, &stored[0]);
        }
        for (int64_t x = 0; x < box[2].size; ++x) {
          const int64_t at = x + box[2].begin;
          const int64_t column = (flip ? width_ - 1 - at : at) + right;
          const float value = inside && column >= 0 && column < width_
                                  ? stored[static_cast<size_t>(column)] * unit_
                                  : 0.0F;
          made[static_cast<size_t>(x)] = (value - mean) / deviation;
        }
        convert(&made[0], DType::f32, to, field_.type.dtype, box[2].size);
        to += box[2].size * size_of(field_.type.dtype);
      }
    }
  }

 private:
  /// Mean and deviation of each channel over the training part, in double precision.
  void measure(const SampleSplit& split) {
    const int64_t pixels = height_ * width_, images = split.size(Split::training);
    std::vector<float> plane(static_cast<size_t>(pixels));
    std::vector<double> sums(static_cast<size_t>(channels_)), squares(sums);
    for (int64_t n = 0; n < images; ++n) {
      const auto [array, i] = samples_.find(split.sample(Split::training, n));
      for (size_t c = 0; c < sums.size(); ++c) {
        load_floats(*array,
                    array->sample(i) + static_cast<int64_t>(c) * pixels * array->element_bytes(),
                    pixels, plane.data());
        for (float v : plane) {
          const double value = static_cast<double>(v * unit_);
          sums[c] += value;
          squares[c] += value * value;
        }
      }
    }
    const double count = static_cast<double>(pixels * images);
    for (size_t c = 0; c < sums.size(); ++c) {
      const double mean = sums[c] / count;
      const double deviation = std::sqrt(std::max(0.0, squares[c] / count - mean * mean));
      scaling_.mean.push_back(static_cast<float>(mean));
      scaling_.deviation.push_back(deviation > 0 ? static_cast<float>(deviation) : 1.0F);
    }
  }

  Samples samples_;
  BatchField field_;
  uint64_t seed_;
  Augmentation augmentation_;
  Scaling scaling_;
  float unit_;
  int64_t channels_ = 0, height_ = 0, width_ = 0;
};

}  // namespace

bool normalises_rows(const DataOptions& options) {
  return normalise_of(options) == Normalise::rows;
}

bool changes_images(const DataOptions& options) {
  const Normalise by = normalise_of(options);
  return augments(options.augment) || by == Normalise::data || by == Normalise::numbers;
}

void check_transforms(const DataOptions& options) {
  parse_augmentation(options.augment);
  if (normalise_of(options) == Normalise::numbers) parse_scaling(options.normalise);
}

bool takes_images(const BatchField& field) {
  return is_float(field.type.dtype) && field.type.shape.size() == 4;
}

bool takes_rows(const BatchField& field) {
  return field.role == BatchField::Role::input && is_float(field.type.dtype) &&
         field.type.shape.size() == 2;
}

void check_transforms(const std::string& spec, const std::vector<BatchField>& fields,
                      const DataOptions& options) {
  std::string inputs;
  for (const BatchField& field : fields) {
    if (field.role == BatchField::Role::input)
      inputs += str(inputs.empty() ? "" : ", ", "'", field.name, "' ", field.type);
  }
  SR_REQUIRE(!normalises_rows(options) || std::any_of(fields.begin(), fields.end(), takes_rows),
             invalid_input, "--data ", spec,
             ": normalise 'rows' is for floating matrices [samples, ", "values]; the model takes ",
             inputs,
             "; images are normalised by data or "
             "MEAN/DEVIATION");
  SR_REQUIRE(!changes_images(options) || std::any_of(fields.begin(), fields.end(), takes_images),
             invalid_input, "--data ", spec, ": ",
             options.augment.empty() ? str("--normalise '", options.normalise)
                                     : str("--augment '", options.augment),
             "' is for floating images [samples, channels, height, width]; the model takes ",
             inputs, options.augment.empty() ? "; matrices are normalised by rows" : "");
}

std::unique_ptr<SampleReader> image_reader(const Samples& samples, const BatchField& field,
                                           const SampleSplit& split, const DataOptions& options) {
  return std::make_unique<ImageReader>(samples, field, split, options);
}

}  // namespace shardrun
