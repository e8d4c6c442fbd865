// A small product of bf16 by the processor's own tiles (AMX), within parallel regions.
#pragma once

#include "kernels/cpu/products/gemm.h"

namespace shardrun::cpu {

/// Null where the processor has no tiles, or the product is another than: of bf16 matrices, of one
/// thread, of at least 32 rows, columns and terms, without post-ops.
std::shared_ptr<const Gemm> make_tile_gemm(const GemmShape& shape);

}  // namespace shardrun::cpu
