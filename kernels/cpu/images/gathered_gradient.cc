// Positions are gathered in parallel: for each the runs of channels that its taps read,
// interleaved.
#include "kernels/cpu/images/gathered_gradient.h"

#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kMostTaps = 64;

class Gathered : public Convolution {
 public:
  Gathered(const ConvolutionShape& s, std::shared_ptr<const PackedProduct> product)
      : s_(s),
        product_(std::move(product)),
        taps_(element_count(s.kernel)),
        bytes_(round_up_64(s.batch * element_count(s.out) * taps_ * s.in_channels *
                           size_of(s.dtype))) {}

  int64_t scratch_bytes() const override { return bytes_ + product_->workspace_bytes(); }

  void run(const KernelArgs& args) const override {
    if (s_.dtype == DType::f32) {
      gather(args.in[0].as<float>(), static_cast<float*>(args.workspace));
    } else {
      gather(args.in[0].as<uint16_t>(), static_cast<uint16_t*>(args.workspace));
    }
    product_->run(args.in[1].data, args.workspace, args.out[0].data,
                  static_cast<char*>(args.workspace) + bytes_);
  }

 private:
  /// Where each tap of a position reads x; null outside of the image.
  template <class T>
  void find(const T* x, int64_t position, const T** from) const {
    const size_t dims = s_.out.size();
    int64_t at[3] = {0, 0, 0};
    for (size_t d = dims; d-- > 0; position /= s_.out[d]) at[d] = position % s_.out[d];
    const int64_t image = position;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      int64_t rest = tap, place = 0, step = 1;
      bool inside = true;
      for (size_t d = dims; d-- > 0; step *= s_.in[d]) {
        const int64_t k = rest % s_.kernel[d];
        rest /= s_.kernel[d];
        const int64_t i = at[d] * s_.strides[d] + k * s_.dilations[d] - s_.low[d];
        inside = inside && i >= 0 && i < s_.in[d];
        place += i * step;
      }
      from[tap] = inside ? x + (image * step + place) * s_.in_channels : nullptr;
    }
  }

  template <class T>
  void gather(const T* x, T* columns) const {
    const int64_t channels = s_.in_channels, row = taps_ * channels;
    parallel_ranges(s_.batch * element_count(s_.out), 1, [&](int64_t begin, int64_t end) {
      const T* from[kMostTaps];
      for (int64_t position = begin; position < end; ++position) {
        find(x, position, from);
        T* to = columns + position * row;
        for (int64_t tap = 0; tap < taps_; ++tap) {
          if (from[tap] == nullptr) {
            for (int64_t c = 0; c < channels; ++c) to[c * taps_ + tap] = 0;
          } else if (taps_ == 1) {
            std::memcpy(to, from[tap], static_cast<size_t>(channels) * sizeof(T));
          } else {
            for (int64_t c = 0; c < channels; ++c) to[c * taps_ + tap] = from[tap][c];
          }
        }
      }
    });
  }

  ConvolutionShape s_;
  std::shared_ptr<const PackedProduct> product_;
  int64_t taps_;
  int64_t bytes_;  // of what is gathered
};

}  // namespace

std::shared_ptr<const Convolution> GatheredGradient::make(const ConvolutionShape& s,
                                                          std::string* why) {
  const int64_t n = s.batch * element_count(s.out), taps = element_count(s.kernel);
  if (s.pass != ConvolutionShape::Pass::weights || !s.channels_last || s.groups != 1 ||
      s.in.size() > 3 || taps > kMostTaps) {
    *why = "gathers for gradients of weights, of images with channels last, without groups";
    return nullptr;
  }
  if (n > 4 * std::min(s.in_channels, s.out_channels)) {
    *why = "positions are many compared with channels";
    return nullptr;
  }
  ProductShape p;  // dy [n, o] turned, by [n, c taps]
  p.m = s.out_channels, p.k = n, p.n = s.in_channels * taps;
  p.a_row = 1, p.a_col = s.out_channels, p.b_row = p.n, p.b_col = 1;
  p.a = p.b = p.in = s.dtype, p.out = s.weights_dtype;
  auto product = PackedProduct::make(p, why);
  return product ? std::make_shared<Gathered>(s, std::move(product)) : nullptr;
}

}  // namespace shardrun::cpu
