// The public header's element types and the engine's.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "shardrun/op.h"

namespace shardrun {

/// Throws invalid_input if it is none.
inline DType element_dtype(ElementType type) {
  switch (type) {
    case ElementType::f32: return DType::f32;
    case ElementType::f64: return DType::f64;
    case ElementType::bf16: return DType::bf16;
    case ElementType::i8: return DType::i8;
    case ElementType::u8: return DType::u8;
    case ElementType::i32: return DType::i32;
    case ElementType::i64: return DType::i64;
    case ElementType::boolean: return DType::boolean;
  }
  fail(ErrorKind::invalid_input, "element type ", static_cast<int>(type), " is not one");
}

/// Throws internal for f16, which no tensor of a graph is.
inline ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return ElementType::f64;
    case DType::bf16: return ElementType::bf16;
    case DType::i8: return ElementType::i8;
    case DType::u8: return ElementType::u8;
    case DType::i32: return ElementType::i32;
    case DType::i64: return ElementType::i64;
    case DType::boolean: return ElementType::boolean;
    case DType::f32: return ElementType::f32;
    case DType::f16: break;
  }
  fail(ErrorKind::internal, "an element type of ", dtype);
}

}  // namespace shardrun
