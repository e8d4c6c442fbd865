// LtProduct: one product through cuBLASLt, its shape fixed, its algorithm chosen when it first
// runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/shape.h"
#include "kernels/cuda/autotune.h"

namespace shardrun::cuda {

/// d = end(op(a) op(b)), in cuBLAS's terms: columns lie dense, `ld` elements apart. op(a) is
/// [rows, depth], op(b) [depth, cols], d [rows, cols]. A batch is `batch` of them, `step` elements
/// apart; and all of that once for each of `starts`.
struct LtShape {
  int64_t rows = 0, cols = 0, depth = 0;
  bool transpose_a = false, transpose_b = false;
  struct Operand {
    int64_t ld = 0, step = 0;
  };
  Operand a, b, d;
  /// Kernels of libraries have a batch along a grid's y or z, which end there.
  static constexpr int64_t kMostBatch = 65535;
  int64_t batch = 1;
  struct Start {
    int64_t a = 0, b = 0, d = 0;
  };
  std::vector<Start> starts = {{}};
  DType in = DType::f32, out = DType::f32;  // bf16 -> bf16 or f32, f32 -> f32; sums are f32
  bool tf32 = false;                        // f32 operands rounded to 10 bits, for tensor cores

  /// What becomes of the sums before they are rounded, in this order: + c, + bias, the ending. c
  /// and the ending's x are of d's type and lie as d does; the bias is of d's type, one number for
  /// each row of d, the same for a whole batch.
  bool adds_c = false, adds_bias = false;
  enum class Ending { none, relu, gelu, gelu_grad } ending = Ending::none;  // gelu: by tanh
  bool keeps = false;  // gelu: its argument is written, too, as d lies
  /// The sum of an operand over `depth` is made, too, of d's type: of a for each row of d, of b for
  /// each column.
  enum class Sums { none, of_a, of_b } sums = Sums::none;
  bool ends() const { return adds_c || adds_bias || ending != Ending::none || sums != Sums::none; }
  LtShape alone() const {
    LtShape out = *this;
    out.adds_c = out.adds_bias = out.keeps = false;
    out.ending = Ending::none, out.sums = Sums::none;
    return out;
  }

  /// What tells this product from others, for the file of measured algorithms.
  std::string key() const;
  /// By the shape alone, at most 32 MiB: sums of a split depth lie there.
  int64_t workspace_bytes() const;
};

/// Memory of one product. c and what follows: where the shape has them. x: what gelu_grad is the
/// slope at.
struct LtOperands {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void *c = nullptr, *bias = nullptr, *x = nullptr;
  void *kept = nullptr, *sums = nullptr;
};

class LtProduct {
 public:
  virtual ~LtProduct() = default;
  /// False if cuBLASLt has no algorithm for it. c may be d. Measures candidates when it first runs,
  /// outside of a recording, if nobody did before; `d` then is written several times.
  virtual bool try_run(const LtOperands& operands, void* workspace, void* stream) = 0;
  /// The same, but throws Error(device) if there is none.
  void run(const LtOperands& operands, void* workspace, void* stream);

 protected:
  explicit LtProduct(const LtShape& shape) : shape_(shape) {}
  LtShape shape_;
};
/// What was measured of them on the calling thread's GPU.
Autotune& tuned_products();

/// Needs no GPU; running does.
std::unique_ptr<LtProduct> make_lt_product(const LtShape& shape);

}  // namespace shardrun::cuda
