// Element-wise calls as one generated kernel.
#pragma once

#include "kernels/element_chain.h"

namespace shardrun::cuda {

/// Source and machine code are made when it first runs. A result may be written in place of an
/// operand of its shape.
PreparedKernel element_kernel(const ElementChain& chain);

}  // namespace shardrun::cuda
