// How a matmul runs on a GPU, decided by its shape: a product of cuBLASLt, with what has to be
// rounded or transposed around it, and what is behind it as cuBLASLt's epilogue.
#pragma once

#include "device/cuda/boxes.h"
#include "kernels/cuda/cublas/lt_product.h"
#include "kernels/element_chain.h"

namespace shardrun::cuda {

struct MatmulPlan {
  std::optional<LtShape> product;  // none: the result is empty, or zero
  bool first_is_a = false;         // the call's first operand is `a` of the product
  bool narrow_first = false, narrow_second = false;  // f32 with bf16: rounded first
  std::optional<BoxLoops> move_first, move_second, move_result;
  DType in = DType::f32;  // of the product's operands
  /// Which of the call's operands are the product's others: 0 where it has none.
  size_t c = 0, bias = 0, x = 0;

  /// The product's, where these are the call's operands and its result as the product takes them.
  LtOperands operands(const KernelArgs& args, const void* first, const void* second,
                      void* result) const;

  /// Parts of the workspace, each on a boundary of 256 bytes: operands rounded, operands and result
  /// moved, the product's own. 0 bytes where there is nothing to do.
  int64_t narrow_first_bytes = 0, narrow_second_bytes = 0, move_first_bytes = 0,
          move_second_bytes = 0, move_result_bytes = 0, product_bytes = 0;
  int64_t workspace_bytes() const {
    return narrow_first_bytes + narrow_second_bytes + move_first_bytes + move_second_bytes +
           move_result_bytes + product_bytes;
  }
};

/// Of a matmul or matmul_post. Nullopt, with the reason in *why, if it cannot run there. Needs no
/// GPU. `tf32`: f32 operands may be rounded to 10 bits.
std::optional<MatmulPlan> plan_matmul(const KernelCall& call, bool tf32, std::string* why);

/// What a matmul_post does behind its product, element by element: reads the product and then the
/// call's operands from the third on; writes the call's result, and the one that is kept where that
/// is not the product itself.
ElementChain chain_behind(const KernelCall& call);

}  // namespace shardrun::cuda
