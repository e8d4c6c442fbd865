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

}  // namespace shardrun
