// Element types, bfloat16 and half conversion, and dispatch from a DType to a C++ type.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string_view>

#include "base/error.h"

namespace shardrun {

/// `boolean` is one byte holding 0 or 1. f16 exists for import and storage only: it is converted to
/// f32 on load, and no kernel computes in it.
enum class DType : uint8_t { f32, f64, bf16, f16, i8, u8, i32, i64, boolean };

int64_t size_of(DType dtype);  // bytes of one element
std::string_view to_string(DType dtype);
DType parse_dtype(std::string_view name);  // throws invalid_input
inline bool is_float(DType d) {
  return d == DType::f32 || d == DType::f64 || d == DType::bf16 || d == DType::f16;
}
inline std::ostream& operator<<(std::ostream& out, DType d) { return out << to_string(d); }

/// Round to nearest even, NaN kept. Trivially copyable: arrays of it are bf16 tensors.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  bfloat16(float f) {  // NOLINT: implicit on purpose, like float from double
    uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);  // to nearest even; infinite from 65520 on

template <DType D>
struct CppTypeOf;
template <>
struct CppTypeOf<DType::f32> {
  using type = float;
};
template <>
struct CppTypeOf<DType::f64> {
  using type = double;
};
template <>
struct CppTypeOf<DType::bf16> {
  using type = bfloat16;
};
template <>
struct CppTypeOf<DType::i8> {
  using type = int8_t;
};
template <>
struct CppTypeOf<DType::u8> {
  using type = uint8_t;
};
template <>
struct CppTypeOf<DType::i32> {
  using type = int32_t;
};
template <>
struct CppTypeOf<DType::i64> {
  using type = int64_t;
};
template <>
struct CppTypeOf<DType::boolean> {
  using type = bool;
};

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of `dtype`: dispatch(d, [&](auto tag) { using T =
/// typename decltype(tag)::type; … }).
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(TypeTag<float>{});
    case DType::f64: return f(TypeTag<double>{});
    case DType::bf16: return f(TypeTag<bfloat16>{});
    case DType::i8: return f(TypeTag<int8_t>{});
    case DType::u8: return f(TypeTag<uint8_t>{});
    case DType::i32: return f(TypeTag<int32_t>{});
    case DType::i64: return f(TypeTag<int64_t>{});
    case DType::boolean: return f(TypeTag<bool>{});
    case DType::f16: break;
  }
  fail(ErrorKind::unsupported, "no kernel computes in ", to_string(dtype));
}

/// The same for floating types only (f32, f64, bf16).
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(TypeTag<float>{});
    case DType::f64: return f(TypeTag<double>{});
    case DType::bf16: return f(TypeTag<bfloat16>{});
    default: fail(ErrorKind::unsupported, "expected a floating type, got ", to_string(dtype));
  }
}

}  // namespace shardrun
