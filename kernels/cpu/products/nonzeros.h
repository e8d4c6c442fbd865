// Products with a left operand that is mostly zeros, whatever it is made of.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cpu {

/// A matmul that looks at some rows of its first operand when it runs, and if at most one element
/// in sixteen is not zero, does with those alone; if not, it runs `otherwise`. For f32 products
/// xy,yn->xn and xy,xn->yn: rows of words, say, with or without dropout, and the gradient of the
/// weights behind them. An infinity or NaN on the right goes to `otherwise` too, since 0 times it
/// is NaN.
KernelImpl by_nonzeros(const KernelImpl& otherwise);

}  // namespace shardrun::cpu
