// The reduction in rank order, of vectors and of what is left behind them: the bits that numbers
// give one by one.
#include "collectives/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace shardrun::test {
namespace {

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

/// What three ranks hold: sums of floats that depend on their order; NaN, infinities and both
/// zeros.
template <class T>
T number(int64_t i, int rank) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>((i * 7 + rank * 5) % 11 - 4);
  } else {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const int64_t which = i % 13;
    if (which == rank) return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    if (which == 3 + rank) return static_cast<T>(inf);
    if (which == 6) return static_cast<T>(rank == 1 ? -0.0f : 0.0f);
    return static_cast<T>(std::ldexp(1.0f + 0.37f * static_cast<float>((i * 5 + rank * 3) % 17),
                                     static_cast<int>((i + 9 * rank) % 20) - 10));
  }
}

template <class A>
A combined(A a, A b, Reduction op) {
  if (op == Reduction::sum) return static_cast<A>(a + b);
  if (a != a) return a;
  if (b != b) return b;
  return op == Reduction::max ? (a >= b ? a : b) : (a <= b ? a : b);
}

template <class T>
std::vector<uint8_t> bits(T value) {
  if constexpr (!std::is_integral_v<T>) {
    if (static_cast<float>(value) != static_cast<float>(value))
      return {};  // one NaN is as good as another
  }
  return std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(&value),
                              reinterpret_cast<const uint8_t*>(&value + 1));
}

template <class T>
void check(DType dtype, Reduction op, int64_t count) {
  std::vector<std::vector<T>> held(3);
  for (int r = 0; r < 3; ++r)
    for (int64_t i = 0; i < count; ++i) held[static_cast<size_t>(r)].push_back(number<T>(i, r));
  const std::vector<std::vector<T>> before = held;
  const std::vector<const void*> in = {held[0].data(), held[1].data(), held[2].data()};
  const std::vector<void*> out = {held[2].data(), held[0].data()};  // outputs may be inputs
  reduce_in_rank_order(in, out, count, dtype, op);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    Sum<T> expected = static_cast<Sum<T>>(before[0][at]);
    for (size_t r = 1; r < 3; ++r)
      expected = combined(expected, static_cast<Sum<T>>(before[r][at]), op);
    for (size_t r : {0, 2}) {
      ASSERT_EQ(bits(held[r][at]), bits(static_cast<T>(expected)))
          << to_string(dtype) << ", " << static_cast<int>(op) << ", element " << i << " of "
          << count << " on rank " << r;
    }
    ASSERT_EQ(bits(held[1][at]), bits(before[1][at])) << "an input that is no output";
  }
}

TEST(Reduce, GivesTheBitsOfOneByOne) {
  for (const int64_t count : {0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 5000}) {
    for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
      check<float>(DType::f32, op, count);
      check<double>(DType::f64, op, count);
      check<bfloat16>(DType::bf16, op, count);
      check<int64_t>(DType::i64, op, count);
      check<int32_t>(DType::i32, op, count);
      check<int8_t>(DType::i8, op, count);
      check<uint8_t>(DType::u8, op, count);
    }
  }
}

}  // namespace
}  // namespace shardrun::test
