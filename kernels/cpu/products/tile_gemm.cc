// Operands as they lie, and a result that is read at once.
#include "kernels/cpu/products/tile_gemm.h"

#include <algorithm>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/tile_multiply.h"

namespace shardrun::cpu {
namespace {

class TileGemm : public Gemm {
 public:
  explicit TileGemm(const GemmShape& s)
      : accumulate_(s.accumulate),
        in_blocks_(s.b_in_blocks),
        out_(s.out),
        c_row_(s.c_strides[0]),
        a_{nullptr, DType::bf16, s.a[0], s.a[1], s.a_strides[0], s.a_strides[1]},
        b_{nullptr, DType::bf16, s.b[0], s.b[1], 1, 1},
        multiply_({s.a[0], s.b[1], s.a[1], s.b_in_blocks, 0, false}) {
    if (!in_blocks_) b_.row_stride = s.b_strides[0], b_.col_stride = s.b_strides[1];
  }

  int64_t scratch_bytes() const override { return multiply_.workspace_bytes(); }

  BlockLayout blocks() const override { return {kSquare, kSquare}; }

  void run(const void* a, const void* b, void* c, void* scratch,
           std::span<const void* const>) const override {
    multiply_.run(Operands(*this, a, b, c), scratch);
  }

 private:
  class Operands final : public TileMatrices {
   public:
    Operands(const TileGemm& of, const void* a, const void* b, void* c)
        : TileMatrices(of.a_.at(a), of.b_.at(b), of.in_blocks_), of_(of), c_(c) {}

    int64_t pieces(const TileRows& rows) const override { return rows.rows; }
    void write(const TileRows& rows, int64_t piece) const override {
      const float* const from = rows.at + piece * rows.row;
      const int64_t at = (rows.m + piece) * of_.c_row_ + rows.n;
      if (of_.out_ == DType::f32) {
        put(from, rows.columns, static_cast<float*>(c_) + at);
      } else {
        put(from, rows.columns, static_cast<uint16_t*>(c_) + at);
      }
    }

   private:
    template <class T>
    void put(const float* from, int64_t count, T* to) const {
      for (int64_t j = 0; j < count; j += kLanes) {
        const int64_t n = std::min(kLanes, count - j);
        Lanes sums = load_lanes(from + j);
        if (of_.accumulate_) sums += load_lanes(to + j, n);
        store_lanes(to + j, sums, n);
      }
    }

    const TileGemm& of_;
    void* c_;
  };

  bool accumulate_, in_blocks_;
  DType out_;
  int64_t c_row_;
  MatrixView a_, b_;
  TileMultiply multiply_;
};

bool is_packable(const Shape& strides) { return strides[0] == 1 || strides[1] == 1; }

}  // namespace

std::shared_ptr<const Gemm> make_tile_gemm(const GemmShape& s) {
  constexpr int64_t kLeast = TileMultiply::kLeast;
  if (!has_matrix_units() || s.in != DType::bf16 || !s.one_thread || !s.post.empty() ||
      s.a.size() != 2 || s.c_strides[1] != 1 || !is_packable(s.a_strides) ||
      (!s.b_in_blocks && !is_packable(s.b_strides)) || std::min({s.a[0], s.a[1], s.b[1]}) < kLeast)
    return nullptr;
  return std::make_shared<TileGemm>(s);
}

}  // namespace shardrun::cpu
