// A product of bf16 by the processor's own tiles (AMX).
#pragma once

#include "kernels/cpu/products/packed_product.h"

namespace shardrun::cpu {

/// Null, with the reason in *why: the processor has no tiles, the product is not of bf16 or too
/// small, or a post-op is not known here. Sums are in f32, and of at most 1,536 terms in one
/// go; they do not depend on the number of threads.
std::shared_ptr<const PackedProduct> make_tile_product(const ProductShape& shape, std::string* why);

}  // namespace shardrun::cpu
