// Sizes and names of element types.
#include "base/dtype.h"

#include <array>
#include <cmath>

namespace shardrun {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DTypeInfo, 9> kInfo = {{{"f32", 4},
                                             {"f64", 8},
                                             {"bf16", 2},
                                             {"f16", 2},
                                             {"i8", 1},
                                             {"u8", 1},
                                             {"i32", 4},
                                             {"i64", 8},
                                             {"bool", 1}}};

}  // namespace

int64_t size_of(DType dtype) { return kInfo[static_cast<size_t>(dtype)].bytes; }
std::string_view to_string(DType dtype) { return kInfo[static_cast<size_t>(dtype)].name; }

DType parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kInfo.size(); ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
  }
  fail(ErrorKind::invalid_input, "dtype '", name,
       "' is not one of f32, f64, bf16, f16, i8, u8, i32, i64, bool");
}

float half_to_float(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const float sign = (half & 0x8000) ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = 0x7f800000u, kTooLarge = 0x477ff000u, kLeastNormal = 0x38800000u;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00u;
  } else if (magnitude >= kTooLarge) {
    half = 0x7c00u;
  } else if (magnitude < kLeastNormal) {  // a multiple of 2^-24
    half = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24)));
  } else {  // another bias, and 13 bits fewer
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace shardrun
