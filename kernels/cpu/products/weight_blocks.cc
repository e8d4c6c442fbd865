// Convolutions': 32 channels out by 32 in at a time, transposed so that channels out lie side by
// side, for each channel in and tap, and from there to their places.
#include "kernels/cpu/products/weight_blocks.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kMostTaps = 9;

template <int... I>
Units interleaved(Units a, Units b, int half, std::integer_sequence<int, I...>) {
  return half == 0 ? __builtin_shufflevector(a, b, (I % 2 * 16 + I / 2)...)
                   : __builtin_shufflevector(a, b, (I % 2 * 16 + I / 2 + 8)...);
}

/// stage[c taps + tap]: 32 channels out, in order.
void turn(const uint16_t* from, int64_t row, int64_t columns, Units* stage) {
  for (int64_t first = 0; first < columns; first += kSquare)
    transpose_halves(from + first, row, stage + first);
}

}  // namespace

WeightLayout WeightBlocks::matrix(const BlockLayout& blocks, size_t rank, bool rows_are_terms) {
  WeightLayout out;
  const int64_t k = rows_are_terms ? 0 : 1, n = 1 - k;
  out.order = {n, k};
  for (size_t d = 2; d < rank; ++d) out.order.push_back(static_cast<int64_t>(d));
  out.blocks = {blocks.depth / 2, blocks.width, 2};
  out.of = {k, n, k};
  return out;
}

std::optional<WeightBlocks> WeightBlocks::make(const TensorType& weights,
                                               const WeightLayout& layout) {
  using Ints = std::vector<int64_t>;
  const Shape& dims = weights.shape;
  if (weights.dtype != DType::bf16 || dims.size() < 2 || layout.order.size() != dims.size() ||
      element_count(dims) == 0)
    return std::nullopt;
  WeightBlocks out;
  out.out_ = dims[0], out.in_ = dims[1];
  out.taps_ = element_count(dims) / (out.out_ * out.in_);
  const auto& [order, blocks, of] = layout;
  if (out.taps_ == 1 && blocks.size() == 3 && blocks[0] == kLanes && blocks[1] % kLanes == 0) {
    const BlockLayout as_matrix{blocks[1], 2 * blocks[0]};
    for (const bool rows_are_terms : {false, true}) {
      out.rows_are_terms_ = rows_are_terms;
      if (layout == matrix(as_matrix, dims.size(), rows_are_terms)) {
        out.matrix_ = as_matrix;
        return out;
      }
    }
  }
  if (dims.size() < 3 || out.out_ % kPanel != 0 || out.in_ % kSquare != 0 || out.taps_ > kMostTaps)
    return std::nullopt;
  Ints forward = {0}, back = {0, 1}, turned = {1, 0};
  for (size_t d = 2; d < dims.size(); ++d) {
    for (Ints* to : {&forward, &back, &turned}) to->push_back(static_cast<int64_t>(d));
  }
  forward.push_back(1);
  if (order == forward && of == Ints{0, 1} && blocks[1] == 2 && blocks[0] % kSquare == 0 &&
      out.out_ % blocks[0] == 0) {
    out.width_ = blocks[0];
    return out;
  }
  out.in_first_ = order == turned;
  if ((order == back || order == turned) && of == Ints{0, 1, 0} && blocks == Ints{8, 16, 2})
    return out;
  return std::nullopt;
}

void WeightBlocks::run(const uint16_t* from, uint16_t* to) const {
  if (matrix_) return pack(0, out_, from, to);
  const int64_t across = in_ / kSquare;
  parallel_ranges(panels() * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      tile(item / across * kSquare, item % across * kSquare, from, to);
    end_stream();
  });
}

void WeightBlocks::run_panel(int64_t panel, const uint16_t* from, uint16_t* to) const {
  const int64_t first = panel * kPanel;
  if (matrix_) return pack(first, std::min(kPanel, out_ - first), from, to);
  for (int64_t c = 0; c < in_; c += kSquare) tile(first, c, from, to);
  end_stream();
}

void WeightBlocks::pack(int64_t first, int64_t count, const uint16_t* from, uint16_t* to) const {
  from += first * in_;
  if (rows_are_terms_) {
    pack_blocks({from, DType::bf16, count, in_, in_, 1}, {out_, in_, first, 0}, DType::bf16,
                *matrix_, to);
  } else {
    pack_blocks({from, DType::bf16, in_, count, 1, in_}, {in_, out_, 0, first}, DType::bf16,
                *matrix_, to);
  }
}

void WeightBlocks::tile(int64_t o, int64_t c, const uint16_t* from, uint16_t* to) const {
  using Lane = std::make_integer_sequence<int, 16>;
  const int64_t row = in_ * taps_;
  Units stage[kSquare * kMostTaps];
  turn(from + o * row + c * taps_, row, kSquare * taps_, stage);
  for (int64_t tap = 0; tap < taps_; ++tap) {
    if (width_ > 0) {  // [O / width][tap][C / 2][width][2]
      uint16_t* at =
          to + ((o / width_ * taps_ + tap) * (in_ / 2) + c / 2) * 2 * width_ + o % width_ * 2;
      for (int64_t pair = 0; pair < kSquare / 2; ++pair, at += 2 * width_) {
        const Units a = stage[2 * pair * taps_ + tap], b = stage[(2 * pair + 1) * taps_ + tap];
        const Units low = low_halves(a, b), high = high_halves(a, b);
        stream(at, interleaved(low, high, 0, Lane{}));
        stream(at + kSquare, interleaved(low, high, 1, Lane{}));
      }
      continue;
    }
    for (int64_t half = 0; half < 2; ++half) {  // [O / 16][C / 16][tap][8][16][2], or C first
      Units block[kLanes];
      for (int64_t b = 0; b < kLanes; ++b) block[b] = stage[(half * kLanes + b) * taps_ + tap];
      transpose(block);
      for (int64_t p = 0; p < kLanes; ++p) {
        const int64_t outer = o / kLanes + p / 8, inner = c / kLanes + half;
        const int64_t place =
            in_first_ ? inner * (out_ / kLanes) + outer : outer * (in_ / kLanes) + inner;
        stream(to + (place * taps_ + tap) * 256 + p % 8 * 32, block[p]);
      }
    }
  }
}

}  // namespace shardrun::cpu
