// Synthetic batches: random numbers that cost about what reading a batch costs, by all threads of
// the rank.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "base/philox_blocks.h"
#include "exec/data/data.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

/// A few batches tell how the loss on unseen noise stands.
constexpr int64_t kSyntheticValidationBatches = 8;

/// Elements that a group of Philox blocks makes, each of 16 bits. Element 23 of a group is the low
/// half of word 1 of block 7; elements 64 to 127 are high halves.
constexpr int64_t kGroup = 8 * kPhiloxBlocks;

/// out[i] = convert(the 16 bits of element first + i).
template <class T, class Convert>
void convert_bits(const RandomStream& stream, int64_t first, int64_t n, const Convert& convert,
                  T* out) {
  alignas(64) uint32_t c[4][kPhiloxBlocks];
  alignas(64) T made[kGroup];
  for (int64_t begin = first / kGroup * kGroup; begin < first + n; begin += kGroup) {
    draw_blocks(
        stream, [&](int64_t b) { return static_cast<uint64_t>(begin / 8 + b); }, c);
    for (int64_t part = 0; part < 8; ++part) {
      const uint32_t shift = part < 4 ? 0 : 16;
      T* const to = made + part * kPhiloxBlocks;
#pragma omp simd
      for (int64_t b = 0; b < kPhiloxBlocks; ++b) to[b] = convert(c[part % 4][b] >> shift & 0xFFFF);
    }
    const int64_t from = std::max(begin, first), to = std::min(begin + kGroup, first + n);
    std::copy(made + (from - begin), made + (to - begin), out + (from - first));
  }
}

/// A standard normal by 16 bits: the inverse of its distribution function, linear between 4097
/// points. Within 3.67 either way.
class NormalOfBits {
 public:
  NormalOfBits() {
    // Newton's method from each point to the next, from the middle up.
    double x = 0;
    for (size_t i = kLines / 2; i < points_.size(); ++i) {
      const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(kLines + 1);
      for (int k = 0; k < 20; ++k) {
        const double above = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
        x -= above * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
      }
      points_[i] = static_cast<float>(x);
      points_[kLines - i] = -points_[i];
    }
  }
  float operator()(uint32_t bits) const {
    const float at = points_[bits >> 4], next = points_[(bits >> 4) + 1];
    return at + (next - at) * (static_cast<float>(bits & 15) + 0.5F) * 0x1p-4F;
  }

 private:
  static constexpr size_t kLines = 4096;
  std::array<float, kLines + 1> points_ = {};
};

/// Calls f(first, n, offset) for the elements of `box` that lie side by side in the whole, at most
/// so many at a time, on all threads: n elements from `first` on, that go to out + offset.
template <class F>
void for_runs(const Shape& whole, const Box& box, F&& f) {
  constexpr int64_t kMost = 1 << 14;
  if (is_empty(box)) return;
  size_t d = box.size();  // dims [d, rank) are one run
  int64_t length = 1;
  while (d > 0 && (d == box.size() || box[d].size == whole[d])) length *= box[--d].size;
  int64_t run_begin = 0, stride = 1;  // of the first run; elements of one index of dim d - 1
  for (size_t k = box.size(); k-- > d;) run_begin += box[k].begin * stride, stride *= whole[k];
  int64_t runs = 1;
  for (size_t k = 0; k < d; ++k) runs *= box[k].size;
  const int64_t pieces = (length + kMost - 1) / kMost;
#pragma omp parallel for schedule(static) if (runs * length > kMost)
  for (int64_t piece = 0; piece < runs * pieces; ++piece) {
    const int64_t run = piece / pieces, from = piece % pieces * kMost;
    int64_t first = run_begin, rest = run, step = stride;
    for (size_t k = d; k-- > 0; step *= whole[k]) {
      first += (box[k].begin + rest % box[k].size) * step;
      rest /= box[k].size;
    }
    f(first + from, std::min(kMost, length - from), run * length + from);
  }
}

class SyntheticSource : public DataSource {
 public:
  SyntheticSource(const std::vector<BatchField>& fields, const DataOptions& options)
      : options_(options) {
    for (const BatchField& field : fields) {
      const bool known =
          is_float(field.type.dtype) || field.type.dtype == DType::boolean || field.bound > 0;
      SR_REQUIRE(known, invalid_input, "synthetic batches: the range of input '", field.name, "' (",
                 field.type, ") is not known; give --data");
    }
  }

  void read(int64_t batch, Split split, const BatchField& field, const Box& box,
            void* out) const override {
    const std::string_view use = split == Split::training ? "batch:" : "validation:";
    const RandomStream stream{options_.seed, data_stream(use, field.name),
                              static_cast<uint64_t>(batch)};
    const DType dtype = field.type.dtype;
    const auto convert = [&](auto tag, const auto& conversion) {
      using T = typename decltype(tag)::type;
      for_runs(field.type.shape, box, [&](int64_t first, int64_t n, int64_t offset) {
        convert_bits(stream, first, n, conversion, static_cast<T*>(out) + offset);
      });
    };
    if (is_float(dtype)) {
      dispatch_float(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        convert(tag, [this](uint32_t bits) { return static_cast<T>(normal_(bits)); });
      });
      return;
    }
    if (dtype == DType::boolean) {
      convert(std::type_identity<bool>(), [](uint32_t bits) { return bits >> 15 != 0; });
      return;
    }
    const auto bound = static_cast<uint64_t>(field.bound);
    for_box(field.type.shape, box, [&](int64_t index, int64_t i) {
      const auto words = stream.block(static_cast<uint64_t>(index));
      const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
      const auto scaled = static_cast<unsigned __int128>(bits) * bound >> 64;
      store_integer(out, dtype, i, static_cast<int64_t>(scaled));
    });
  }

  int64_t batches(Split split) const override {
    if (options_.validation_fraction <= 0 || split != Split::validation) return 0;
    return std::min(kSyntheticValidationBatches, options_.max_validation_batches);
  }

  std::string describe() const override { return str("synthetic batches, seed ", options_.seed); }

 private:
  DataOptions options_;
  NormalOfBits normal_;
};

}  // namespace

std::unique_ptr<DataSource> make_synthetic_source(const std::vector<BatchField>& fields,
                                                  const DataOptions& options) {
  return std::make_unique<SyntheticSource>(fields, options);
}

}  // namespace shardrun
