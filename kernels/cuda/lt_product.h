// LtProduct: one product through cuBLASLt, its shape fixed, its algorithm chosen when it first
// runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/shape.h"

namespace shardrun::cuda {

/// d = op(a) op(b), in cuBLAS's terms: columns lie dense, `ld` elements apart. op(a) is
/// [rows, depth], op(b) [depth, cols], d [rows, cols]. A batch is `batch` of them, `step` elements
/// apart; and all of that once for each of `starts`.
struct LtShape {
  int64_t rows = 0, cols = 0, depth = 0;
  bool transpose_a = false, transpose_b = false;
  struct Operand {
    int64_t ld = 0, step = 0;
  };
  Operand a, b, d;
  int64_t batch = 1;
  struct Start {
    int64_t a = 0, b = 0, d = 0;
  };
  std::vector<Start> starts = {{}};
  DType in = DType::f32, out = DType::f32;  // bf16 -> bf16 or f32, f32 -> f32; sums are f32
  bool tf32 = false;                        // f32 operands rounded to 10 bits, for tensor cores

  /// What tells this product from others, for the file of measured algorithms.
  std::string key() const;
  /// By the shape alone, at most 32 MiB: sums of a split depth lie there.
  int64_t workspace_bytes() const;
};

class LtProduct {
 public:
  virtual ~LtProduct() = default;
  /// Measures candidates when it first runs, outside of a recording, if nobody did before; `d` then
  /// is written several times.
  virtual void run(const void* a, const void* b, void* d, void* workspace, void* stream) = 0;
};
/// Needs no GPU; running does.
std::unique_ptr<LtProduct> make_lt_product(const LtShape& shape);

}  // namespace shardrun::cuda
