// Transpositions element by element: whole tiles, what is left at both edges, and every width.
#include "kernels/cpu/strided_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace shardrun::cpu {
namespace {

using Perm = std::vector<int64_t>;

/// Every element's own number, in `bytes` of it.
std::vector<unsigned char> numbered(int64_t count, int64_t bytes) {
  std::vector<unsigned char> out(static_cast<size_t>(count * bytes));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(&out[static_cast<size_t>(i * bytes)], &i, static_cast<size_t>(bytes));
  return out;
}

TEST(StridedCopy, TransposesEveryWidth) {
  struct Case {
    Shape shape;
    Perm perm;
  };
  for (const auto& [shape, perm] : {Case{{64, 32}, {1, 0}},
                                    {{70, 97}, {1, 0}},
                                    {{16, 5}, {1, 0}},
                                    {{3, 200}, {1, 0}},
                                    {{2, 40, 66}, {0, 2, 1}},
                                    {{33, 3, 48}, {2, 1, 0}},
                                    {{5, 34, 2, 37}, {3, 0, 2, 1}},
                                    {{4, 6, 5, 32}, {0, 2, 1, 3}},
                                    {{3, 0, 4}, {2, 1, 0}}}) {
    Shape out;
    for (const int64_t p : perm) out.push_back(shape[static_cast<size_t>(p)]);
    const Shape strides = row_major_strides(shape);
    const int64_t count = element_count(shape);
    for (const int64_t bytes : {1, 2, 4, 8}) {
      const std::vector<unsigned char> from = numbered(count, bytes);
      std::vector<unsigned char> to(from.size() + 64, 0xee);
      StridedCopy::transpose(shape, perm, bytes).run(from.data(), to.data());
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, place = 0;
        for (size_t d = out.size(); d-- > 0; rest /= out[d])
          place += rest % out[d] * strides[static_cast<size_t>(perm[d])];
        ASSERT_EQ(
            std::memcmp(&to[static_cast<size_t>(i * bytes)],
                        &from[static_cast<size_t>(place * bytes)], static_cast<size_t>(bytes)),
            0)
            << to_string(shape) << " of " << bytes << " bytes, element " << i;
      }
      for (size_t i = from.size(); i < to.size(); ++i) ASSERT_EQ(to[i], 0xee) << "wrote behind";
    }
  }
}

}  // namespace
}  // namespace shardrun::cpu
