// One large product: operands are packed chunk by chunk into a workspace that stays in cache, as
// oneDNN's fast products like to read them, or the processor's tiles (tile_product.h).
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/products/gemm.h"

namespace shardrun::cpu {

/// c[m, n] = a[m, k] b[k, n], c dense and row-major. Strides in elements; of each operand's two one
/// is 1. An f32 operand of a bf16 product is rounded as it is packed.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row = 0, a_col = 0, b_row = 0, b_col = 0;
  DType a = DType::f32, b = DType::f32;
  DType in = DType::f32, out = DType::f32;  // of the product: f32 -> f32, bf16 -> bf16 or f32
  std::vector<GemmPost> post = {};
  bool tiles = false;                       // by tile_product.h, else by oneDNN
  bool read_at_once = false;                // the result is: it should stay in caches
  bool packed = false;                      // b is, all of it, as blocks() says
  int64_t chunk_bytes = int64_t{12} << 20;  // of b, else packed in parts; of oneDNN's
};

class PackedProduct {
 public:
  /// Null, with the reason in *why, if it is too small or oneDNN has no such product. Chunks do not
  /// depend on the number of threads.
  static std::shared_ptr<const PackedProduct> make(const ProductShape& shape, std::string* why);
  virtual ~PackedProduct() = default;

  virtual int64_t workspace_bytes() const = 0;
  virtual BlockLayout blocks() const = 0;  // of b, where it is packed already
  /// `operands`: of those post-ops that have one.
  virtual void run(const void* a, const void* b, void* c, void* workspace,
                   std::span<const void* const> operands = {}) const = 0;
};

}  // namespace shardrun::cpu
