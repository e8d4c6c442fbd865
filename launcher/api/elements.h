// The public header's element types and the engine's.
#pragma once

#include "base/dtype.h"
#include "shardrun/op.h"

namespace shardrun {

/// Throws invalid_input if it is none.
DType element_dtype(ElementType type);
/// Throws internal for f16, which no tensor of a graph is.
ElementType element_type(DType dtype);

}  // namespace shardrun
