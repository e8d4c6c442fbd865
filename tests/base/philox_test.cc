// Random numbers in bulk are those one by one.
#include "base/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/philox_blocks.h"

namespace shardrun {
namespace {

TEST(Philox, BlocksInBulkAreThoseOneByOne) {
  const RandomStream stream{0x123456789ABCDEF0, 0xFEDCBA9876543210, 77};
  for (uint64_t first :
       {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 9, (uint64_t{1} << 61) + 7}) {
    const auto number = [&](int64_t b) { return first + 3 * static_cast<uint64_t>(b); };
    uint32_t c[4][kPhiloxBlocks], words[kPhiloxWords];
    draw_blocks(stream, number, c);
    draw_words(stream, first, words);
    for (int64_t i = 0; i < kPhiloxBlocks * 4; ++i)
      ASSERT_EQ(c[i % 4][i / 4], stream.block(number(i / 4))[static_cast<size_t>(i % 4)]) << i;
    for (int64_t i = 0; i < kPhiloxWords; ++i)
      ASSERT_EQ(words[i], stream.bits(4 * first + static_cast<uint64_t>(i))) << first << " + " << i;
  }
}

TEST(Philox, NormalsInBulkAreThoseOneByOne) {
  const RandomStream stream{90210, 7, 3};
  for (uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 9}) {
    std::vector<float> all(100, -1);
    for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{16}, int64_t{37}}) {
      stream.normals(first, n, all.data());
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(all[static_cast<size_t>(i)], stream.normal(first + static_cast<uint64_t>(i)))
            << first << " + " << i;
      }
    }
    EXPECT_EQ(all[37], -1);  // nothing behind what was asked for
  }
}

TEST(Philox, NormalsAreBoxAndMullers) {
  const RandomStream stream{90210, 8, 0};
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const auto words = stream.block(i);
    const double u1 = (words[0] + 1.0) * 0x1p-32, u2 = words[1] * 0x1p-32;
    const double wanted = std::sqrt(-2 * std::log(u1)) * std::cos(2 * std::numbers::pi * u2);
    const double x = stream.normal(i);
    ASSERT_NEAR(x, wanted, 1e-7 * std::max(1.0, std::abs(wanted))) << "seed 90210, " << i;
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

}  // namespace
}  // namespace shardrun
