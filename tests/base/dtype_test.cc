// Half precision, in both directions.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/tensor.h"

namespace shardrun {
namespace {

TEST(Half, EveryNumberComesBackFromAFloat) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
    } else if (value != 0) {  // half_to_float has one zero
      ASSERT_EQ(float_to_half(value), half) << bits;
    }
  }
}

TEST(Half, RoundsToTheNearestAndHalfwayToEven) {
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {  // two neighbours, and what lies between
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const float a = half_to_float(low), b = half_to_float(high), middle = (a + b) / 2;
    ASSERT_EQ(float_to_half(middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, a)), low) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, b)), high) << bits;
    ASSERT_EQ(float_to_half(-middle), 0x8000u | (bits % 2 == 0 ? low : high)) << bits;
  }
}

TEST(Half, IsInfiniteFrom65520On) {
  EXPECT_EQ(float_to_half(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
}

TEST(Half, TensorsAreConverted) {
  const Tensor floats = Tensor::from<float>({3}, {1.0f, -2.5f, 65504.0f}, DType::f32);
  const Tensor halves = convert(floats, DType::f16);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(halves.at(i), floats.at(i)) << i;
  EXPECT_EQ(convert(Tensor::from<double>({1}, {0.5}, DType::f64), DType::f16).at(0), 0.5);
  EXPECT_EQ(convert(Tensor::vector_i64({7}), DType::f16).at(0), 7);
}

}  // namespace
}  // namespace shardrun
