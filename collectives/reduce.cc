// The reduction in rank order, staging sizes, and checks of arguments.
#include "collectives/reduce.h"

#include <algorithm>
#include <numeric>

#include "base/shape.h"

namespace shardrun {
namespace {

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<bfloat16> {
  using type = float;
};

template <class T, class Combine>
void reduce_typed(std::span<const void* const> in, T* out, int64_t count, Combine combine) {
  using A = typename Accumulator<T>::type;
  // A block of accumulators: the inputs stream through cache once, and `out` may be an input.
  constexpr int64_t kBlock = 1024;
  A acc[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(in[0]) + begin;
    for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(first[i]);
    for (size_t r = 1; r < in.size(); ++r) {
      const T* next = static_cast<const T*>(in[r]) + begin;
      for (int64_t i = 0; i < n; ++i) acc[i] = combine(acc[i], static_cast<A>(next[i]));
    }
    for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(acc[i]);
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> in, void* out, int64_t count, DType dtype,
                          Reduction op) {
  if (count == 0) return;
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Accumulator<T>::type;
    T* to = static_cast<T*>(out);
    switch (op) {
      case Reduction::sum:
        reduce_typed<T>(in, to, count, [](A a, A b) { return static_cast<A>(a + b); });
        break;
      // `a != a` keeps a NaN of the left side; a NaN of the right side fails the comparison.
      case Reduction::max:
        reduce_typed<T>(in, to, count, [](A a, A b) { return a >= b || a != a ? a : b; });
        break;
      case Reduction::min:
        reduce_typed<T>(in, to, count, [](A a, A b) { return a <= b || a != a ? a : b; });
        break;
    }
  });
}

int64_t reduce_scatter_staging_bytes(std::span<const int64_t> counts, DType dtype, int rank) {
  const int64_t part = counts[static_cast<size_t>(rank)] * size_of(dtype);
  return (static_cast<int64_t>(counts.size()) - 1) * round_up_64(std::min(part, kReduceChunkBytes));
}

int64_t all_reduce_staging_bytes(int64_t count, DType dtype, int ranks) {
  const int64_t bytes = count * size_of(dtype);
  if (bytes <= kSmallAllReduceBytes) return (ranks - 1) * round_up_64(bytes);
  const int64_t part = chunk(count, ranks, 0).size * size_of(dtype);
  return (ranks - 1) * round_up_64(std::min(part, kReduceChunkBytes));
}

int64_t offset_of(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::string call_name(std::string_view operation, int rank, int size) {
  return str(operation, " on rank ", rank, " of ", size);
}

void check_counts(std::string_view operation, std::span<const int64_t> counts, int rank, int size) {
  SR_REQUIRE(static_cast<int>(counts.size()) == size, comm, call_name(operation, rank, size),
             ": got ", counts.size(), " counts, wanted one per rank");
  for (size_t r = 0; r < counts.size(); ++r) {
    SR_REQUIRE(counts[r] >= 0, comm, call_name(operation, rank, size), ": count ", counts[r],
               " for rank ", r, " is negative");
  }
}

void check_reducible(std::string_view operation, DType dtype, int rank, int size) {
  SR_REQUIRE(dtype != DType::f16, unsupported, call_name(operation, rank, size),
             ": cannot reduce f16; convert it to f32 or bf16");
}

void check_peer(std::string_view operation, int peer, int rank, int size) {
  SR_REQUIRE(peer >= 0 && peer < size, comm, call_name(operation, rank, size),
             ": there is no rank ", peer);
}

void check_groups(const std::vector<std::vector<int>>& groups, int rank, int size) {
  std::vector<bool> taken(static_cast<size_t>(size), false);
  for (const std::vector<int>& group : groups) {
    for (int member : group) {
      check_peer("split", member, rank, size);
      SR_REQUIRE(!taken[static_cast<size_t>(member)], comm, call_name("split", rank, size),
                 ": rank ", member, " is named twice");
      taken[static_cast<size_t>(member)] = true;
    }
  }
}

}  // namespace shardrun
