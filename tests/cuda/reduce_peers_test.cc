// What threads of a GPU make of several ranks' memory, on the host: the bits that it makes of them,
// 16 bytes at a time where all begin so.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "base/tensor.h"
#include "collectives/nccl/reduce_bodies.h"
#include "collectives/reduce.h"

namespace shardrun::cuda {
namespace {

/// Elements that a body does at once, or one where few are left.
template <class T, int N>
int64_t elements_of(const ReduceUnit<T, N>&) {
  return N;
}

/// Numbers whose sums depend on their order; NaN, infinities and both zeros among floats.
void put(DType dtype, char* to, uint64_t random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kRare[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, -0.0f, 0.0f};
  double value =
      dtype == DType::boolean ? static_cast<double>(random & 1) : static_cast<double>(random % 40);
  if (is_float(dtype)) {
    value = std::ldexp(1 + static_cast<double>(random % 1000) / 1000,
                       static_cast<int>(random / 1000 % 24)) *
            (random & 1 ? 1 : -1);
    if (random / 32768 % 8 == 0) value = static_cast<double>(kRare[random % 5]);
  }
  convert(&value, DType::f64, to, dtype, 1);
}

/// One NaN is as good as another.
bool same(DType dtype, const char* a, const char* b) {
  if (is_float(dtype)) {
    double x = 0, y = 0;
    convert(a, dtype, &x, DType::f64, 1);
    convert(b, dtype, &y, DType::f64, 1);
    if (x != x && y != y) return true;
  }
  return std::memcmp(a, b, static_cast<size_t>(size_of(dtype))) == 0;
}

TEST(ReducePeers, HasTheHostsBitsInUnits) {
  constexpr uint64_t kSeed = 20261123;
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  for (DType dtype : kReducible) {
    const int64_t element = size_of(dtype);
    for (Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
      for (int64_t count : {0, 1, 7, 16, 33, 64, 515}) {
        for (size_t ranks : {1, 2, 3, 5}) {
          for (int64_t off : {0, 1, 2, 4, 8}) {  // of one rank's, in elements
            struct alignas(16) Sixteenth {
              char bytes[16];
            };
            const auto sixteenths = static_cast<size_t>((count + off) * element / 16 + 2);
            std::vector<std::vector<Sixteenth>> held(ranks, std::vector<Sixteenth>(sixteenths));
            std::vector<char*> at;
            for (size_t r = 0; r < ranks; ++r) {
              char* begin = held[r][0].bytes;
              at.push_back(begin + (r + 1 == ranks ? off * element : 0));
              for (int64_t i = 0; i < count; ++i) put(dtype, at[r] + i * element, rng());
            }
            const std::vector<const void*> in(at.begin(), at.end());
            std::vector<char> want(static_cast<size_t>(count * element) + 64);
            reduce_in_rank_order(in, want.data() + (64 - address_of(want.data()) % 64), count,
                                 dtype, op);
            const char* wanted = want.data() + (64 - address_of(want.data()) % 64);
            // In the memory of the last, whose next bytes stay as they are.
            const char behind = at.back()[count * element] = 77;
            int64_t done = -1;
            const auto each = [&](int64_t units, const auto& body) {
              for (int64_t i = 0; i < units; ++i) body(i);
              done = elements_of(body);
            };
            reduce_on(each, in, at.back(), count, dtype, op);
            EXPECT_EQ(done * element, std::min<int64_t>(16, off == 0 ? 16 : off * element));
            EXPECT_EQ(at.back()[count * element], behind);
            for (int64_t i = 0; i < count; ++i) {
              ASSERT_TRUE(same(dtype, at.back() + i * element, wanted + i * element))
                  << dtype << ", " << static_cast<int>(op) << ", element " << i << " of " << count
                  << ", " << ranks << " ranks, " << off << " elements behind a boundary";
            }
          }
        }
      }
    }
  }
}

TEST(ReducePeers, TakesSoManyRanks) {
  float numbers[4] = {1, 2, 3, 4};
  const auto each = [](int64_t units, const auto& body) {
    for (int64_t i = 0; i < units; ++i) body(i);
  };
  alignas(16) float sum[4];
  reduce_on(each, std::vector<const void*>(64, numbers), sum, 4, DType::f32, Reduction::sum);
  EXPECT_EQ(sum[3], 256);
  EXPECT_THROW(
      reduce_on(each, std::vector<const void*>(65, numbers), sum, 4, DType::f32, Reduction::sum),
      Error);
}

}  // namespace
}  // namespace shardrun::cuda
