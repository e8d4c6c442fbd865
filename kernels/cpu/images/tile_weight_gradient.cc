// Columns are the taps in turn of 32 channels in, then of the next 32: what stands together in the
// weights is summed together. A square of x is gathered position by position.
#include "kernels/cpu/images/tile_weight_gradient.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/round_up.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/tile_multiply.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kMostTaps = 16;  // of more the positions multiplied at a time would be few

class TileWeightGradient : public Convolution {
 public:
  explicit TileWeightGradient(const ConvolutionShape& s)
      : s_(s),
        taps_(element_count(s.kernel)),
        positions_(s.batch * element_count(s.out)),
        blocks_(divide_up(s.in_channels, kSquare)),
        multiply_({s.out_channels, blocks_ * taps_ * kSquare, positions_, false, taps_, false}) {}

  int64_t scratch_bytes() const override {
    return round_up_64(taps_ * positions_ * 4) + multiply_.workspace_bytes();
  }

  void run(const KernelArgs& args) const override {
    auto* const rows = static_cast<int32_t*>(args.workspace);
    find_rows(rows);
    multiply_.run(
        Operands(*this, rows, args.in[0].as<uint16_t>(), args.in[1].as<uint16_t>(), args.out[0]),
        static_cast<char*>(args.workspace) + round_up_64(taps_ * positions_ * 4));
  }

 private:
  /// For each tap the position of x that each position of dy meets, -1: padding.
  void find_rows(int32_t* rows) const {
    const size_t last = s_.out.size() - 1;
    const int64_t width = s_.out[last], lines = positions_ / width;
    parallel_ranges(taps_ * lines, std::max<int64_t>(1, 4096 / width),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t item = begin; item < end; ++item)
                        find_line(item / lines, item % lines, width, rows + item * width);
                    });
  }
  void find_line(int64_t tap, int64_t line, int64_t width, int32_t* rows) const {
    const size_t last = s_.out.size() - 1;
    const int64_t k = tap % s_.kernel[last];
    tap /= s_.kernel[last];
    // Where the line meets x in all dims but the last, and of which image.
    int64_t at = 0, size = 1;
    bool inside = true;
    for (size_t d = last; d-- > 0;) {
      const int64_t i =
          line % s_.out[d] * s_.strides[d] + tap % s_.kernel[d] * s_.dilations[d] - s_.low[d];
      line /= s_.out[d], tap /= s_.kernel[d];
      inside = inside && i >= 0 && i < s_.in[d];
      at += i * size;
      size *= s_.in[d];
    }
    const int64_t base = (line * size + at) * s_.in[last], step = s_.strides[last],
                  first = k * s_.dilations[last] - s_.low[last];
    for (int64_t o = 0; o < width; ++o) {
      const int64_t i = first + o * step;
      rows[o] = inside && i >= 0 && i < s_.in[last] ? static_cast<int32_t>(base + i) : -1;
    }
  }

  class Operands final : public TileOperands {
   public:
    Operands(const TileWeightGradient& of, const int32_t* rows, const uint16_t* x,
             const uint16_t* dy, const TensorView& dw)
        : of_(of),
          s_(of.s_),
          rows_(rows),
          x_(x),
          dy_{dy, DType::bf16, s_.out_channels, of.positions_, 1, s_.out_channels},
          dw_(dw),
          square_of_dy_(pack_square_of_a(dy_)) {}

    void pack_a(int64_t row, int64_t term, void* square) const override {
      square_of_dy_(dy_, row, term, square);
    }
    bool a_along_rows() const override { return true; }
    bool b_along_columns() const override { return false; }

    void pack_b(int64_t term, int64_t column, void* square) const override {
      const int64_t j = column / kSquare, c = j / of_.taps_ * kSquare,
                    channels = std::min(kSquare, s_.in_channels - c),
                    positions = std::min(kSquare, of_.positions_ - term);
      const int32_t* rows = rows_ + j % of_.taps_ * of_.positions_ + term;
      alignas(64) static constexpr uint16_t kPadding[kSquare] = {};
      const uint16_t* from[kSquare];
      for (int64_t p = 0; p < kSquare; ++p) {
        const bool met = p < positions && rows[p] >= 0;
        from[p] = met ? x_ + rows[p] * s_.in_channels + c : kPadding;
      }
      if (channels == kSquare) return pack_square_of_rows(from, square);
      alignas(64) uint16_t part[kSquare * kSquare] = {};
      for (int64_t p = 0; p < kSquare; ++p) {
        std::memcpy(part + p * kSquare, from[p], static_cast<size_t>(channels) * sizeof(uint16_t));
        from[p] = part + p * kSquare;
      }
      pack_square_of_rows(from, square);
    }

    /// A row of all taps each.
    int64_t pieces(const TileRows& rows) const override { return rows.rows; }
    void write(const TileRows& rows, int64_t piece) const override {
      const int64_t c = rows.n / (kSquare * of_.taps_) * kSquare,
                    channels = std::min(kSquare, s_.in_channels - c),
                    to = ((rows.m + piece) * s_.in_channels + c) * of_.taps_;
      const float* const from = rows.at + piece * rows.row;
      if (dw_.type.dtype == DType::f32) {
        transpose_taps(from, channels, dw_.as<float>() + to);
      } else {
        transpose_taps(from, channels, dw_.as<uint16_t>() + to);
      }
    }

   private:
    template <class T>
    void transpose_taps(const float* from, int64_t channels, T* to) const {
      for (int64_t c = 0; c < channels; ++c, to += of_.taps_) {
        for (int64_t tap = 0; tap < of_.taps_; ++tap) assign(to[tap], from[tap * kSquare + c]);
      }
    }

    const TileWeightGradient& of_;
    const ConvolutionShape& s_;
    const int32_t* rows_;
    const uint16_t* x_;
    MatrixView dy_;
    const TensorView& dw_;
    PackSquare square_of_dy_;
  };

  ConvolutionShape s_;
  int64_t taps_, positions_, blocks_;
  TileMultiply multiply_;
};

}  // namespace

std::shared_ptr<const Convolution> make_tile_weight_gradient(const ConvolutionShape& s,
                                                             std::string* why) {
  if (!has_matrix_units()) {
    *why = "this processor has no tiles";
    return nullptr;
  }
  if (s.pass != ConvolutionShape::Pass::weights || s.dtype != DType::bf16 || !s.channels_last ||
      s.groups != 1) {
    *why = "is of bf16 with channels last, without groups";
    return nullptr;
  }
  const int64_t taps = element_count(s.kernel), positions = s.batch * element_count(s.out),
                met = s.batch * element_count(s.in);
  if (std::min({s.in_channels, s.out_channels, positions}) < TileMultiply::kLeast ||
      taps > kMostTaps) {
    *why = str("wants ", TileMultiply::kLeast, " channels and positions, and at most ", kMostTaps,
               " taps");
    return nullptr;
  }
  if (met > std::numeric_limits<int32_t>::max()) {
    *why = "positions are beyond 32 bits";
    return nullptr;
  }
  return std::make_shared<TileWeightGradient>(s);
}

}  // namespace shardrun::cpu
