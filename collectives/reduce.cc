// The reduction in rank order, staging sizes, memory, and checks of arguments.
#include "collectives/reduce.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "base/lanes.h"
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

/// How T is taken from memory and put there: one by one, or a vector at a time.
template <class T>
struct One {
  using Value = typename Accumulator<T>::type;
  static constexpr int64_t kWidth = 1;
  static Value load(const T* from) { return static_cast<Value>(*from); }
  static void store(T* to, Value value) { *to = static_cast<T>(value); }
};
template <class T>
struct Many {
  typedef T Value __attribute__((vector_size(64)));
  static constexpr int64_t kWidth = static_cast<int64_t>(sizeof(Value) / sizeof(T));
  static Value load(const T* from) { return load_vector<Value>(from); }
  static void store(T* to, const Value& value) { std::memcpy(to, &value, sizeof(value)); }
};
template <>
struct Many<bfloat16> {
  using Value = Lanes;
  static constexpr int64_t kWidth = kLanes;
  static Value load(const bfloat16* from) { return load_lanes(&from->bits); }
  static void store(bfloat16* to, const Value& value) { store_lanes(&to->bits, value); }
};
template <>
struct Many<bool> : One<bool> {};

// Vectors of one block: as many as stay in registers, and hide how long an addition takes.
constexpr int64_t kVectors = 4;
// Outputs in a peer's cache are asked for so early, and at once for writing: reading a line first
// and claiming it afterwards would be two trips.
constexpr int64_t kAheadBytes = 2048;

/// `vectors` of each of `in` from `begin` on. Written for registers: through arrays of numbers,
/// which GCC copies in small pieces, 1 MiB of f32 between two ranks took 33 us, so 14.
template <class Way, int64_t vectors, class T, class Combine>
inline void reduce_block(std::span<const void* const> in, std::span<void* const> out, int64_t begin,
                         Combine combine) {
  typename Way::Value acc[vectors];
  const T* first = static_cast<const T*>(in[0]) + begin;
  for (int64_t v = 0; v < vectors; ++v) acc[v] = Way::load(first + v * Way::kWidth);
  for (size_t r = 1; r < in.size(); ++r) {
    const T* next = static_cast<const T*>(in[r]) + begin;
    for (int64_t v = 0; v < vectors; ++v)
      acc[v] = combine(acc[v], Way::load(next + v * Way::kWidth));
  }
  for (void* to : out)
    for (int64_t v = 0; v < vectors; ++v)
      Way::store(static_cast<T*>(to) + begin + v * Way::kWidth, acc[v]);
}

template <class T, class Combine>
void reduce_typed(std::span<const void* const> in, std::span<void* const> out, int64_t count,
                  Combine combine) {
  constexpr int64_t block = kVectors * Many<T>::kWidth;
  constexpr int64_t ahead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  int64_t begin = 0;
  for (; begin + block <= count; begin += block) {
    if (out.size() > 1 && begin + ahead < count) {
      for (void* to : out) {
        const char* at = static_cast<const char*>(to) + (begin + ahead) * sizeof(T);
        for (size_t line = 0; line < block * sizeof(T); line += 64)
          __builtin_prefetch(at + line, 1);
      }
    }
    reduce_block<Many<T>, kVectors, T>(in, out, begin, combine);
  }
  for (; begin < count; ++begin) reduce_block<One<T>, 1, T>(in, out, begin, combine);
}

/// f(a, b), of integers as numbers without a sign: these wrap around, and an overflow of others has
/// no defined result.
template <class A, class F>
A wrapping(A a, A b, F f) {
  if constexpr (std::is_floating_point_v<A>) {
    return f(a, b);
  } else if constexpr (std::is_integral_v<A>) {
    using Unsigned = std::make_unsigned_t<decltype(a + b)>;
    return static_cast<A>(f(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(a[0])>>) {
    return f(a, b);
  } else {
    using Number = std::make_unsigned_t<std::remove_cvref_t<decltype(a[0])>>;
    using Unsigned = typename Many<Number>::Value;
    return std::bit_cast<A>(f(std::bit_cast<Unsigned>(a), std::bit_cast<Unsigned>(b)));
  }
}

/// Calls f(combine) with what `op` does to two accumulators, or to vectors of them.
template <class F>
void with_combine(Reduction op, F&& f) {
  switch (op) {
    case Reduction::sum: return f([]<class A>(A a, A b) { return wrapping(a, b, std::plus<>()); });
    // `a != a` keeps a NaN of the left side; a NaN of the right side fails the comparison.
    case Reduction::max: return f([]<class A>(A a, A b) { return ((a >= b) | (a != a)) ? a : b; });
    case Reduction::min: return f([]<class A>(A a, A b) { return ((a <= b) | (a != a)) ? a : b; });
    case Reduction::prod:
      return f([]<class A>(A a, A b) { return wrapping(a, b, std::multiplies<>()); });
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> in, std::span<void* const> out,
                          int64_t count, DType dtype, Reduction op) {
  if (count == 0) return;
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_combine(op, [&](auto combine) { reduce_typed<T>(in, out, count, combine); });
  });
}

DType accumulated_type(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

void accumulate_in_rank_order(void* acc, bool fresh, std::span<const void* const> in, int64_t count,
                              DType dtype, Reduction op) {
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Accumulator<T>::type;
    A* sum = static_cast<A*>(acc);
    with_combine(op, [&](auto combine) {
      for (size_t r = 0; r < in.size(); ++r) {
        const T* next = static_cast<const T*>(in[r]);
        for (int64_t i = 0; i < count; ++i) {
          const A x = static_cast<A>(next[i]);
          sum[i] = fresh && r == 0 ? x : combine(sum[i], x);
        }
      }
    });
  });
}

void round_accumulated(const void* acc, std::span<void* const> out, int64_t count, DType dtype) {
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Accumulator<T>::type;
    const A* sum = static_cast<const A*>(acc);
    for (void* to : out) {
      for (int64_t i = 0; i < count; ++i) static_cast<T*>(to)[i] = static_cast<T>(sum[i]);
    }
  });
}

std::shared_ptr<char> private_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr size_t kHugePage = size_t{2} << 20;
  void* data = nullptr;
  SR_REQUIRE(posix_memalign(&data, kHugePage, static_cast<size_t>(bytes)) == 0, out_of_memory,
             "the arena of ", bytes,
             " bytes could not be allocated; use more ranks or a smaller batch");
  // A hint: without it the memory works as well, on small pages.
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  std::memset(data, 0, static_cast<size_t>(bytes));
  return {static_cast<char*>(data), std::free};
}

int64_t reduce_scatter_staging_bytes(std::span<const int64_t> counts, DType dtype) {
  const int64_t part = *std::max_element(counts.begin(), counts.end()) * size_of(dtype);
  return (static_cast<int64_t>(counts.size()) - 1) * round_up_64(std::min(part, kReduceChunkBytes));
}

int64_t all_reduce_staging_bytes(int64_t count, DType dtype, int ranks) {
  const int64_t bytes = count * size_of(dtype);
  if (bytes <= kSmallAllReduceBytes) return (ranks - 1) * round_up_64(bytes);
  const int64_t part = shard_range(count, ranks, 0).size * size_of(dtype);
  return (ranks - 1) * round_up_64(std::min(part, kReduceChunkBytes));
}

int64_t offset_of(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void Communicator::all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                                   void* staging) {
  for (const Reduced& b : buffers) all_reduce(b.data, b.count, dtype, op, staging);
}

int64_t Communicator::all_reduce_each_staging(std::span<const Reduced> buffers, DType dtype) const {
  int64_t most = 0;
  for (const Reduced& b : buffers) most = std::max(most, all_reduce_staging(b.count, dtype));
  return most;
}

int64_t count_of(std::span<const Reduced> buffers) {
  int64_t count = 0;
  for (const Reduced& b : buffers) count += b.count;
  return count;
}

const Members& Communicator::members() const {
  static const Members kAll;
  return kAll;
}

std::string peer_name(const Communicator& on, int peer) {
  const std::vector<int>& ranks = on.members().ranks;
  const auto p = static_cast<size_t>(peer);
  return str("rank ", peer >= 0 && p < ranks.size() ? ranks[p] : peer);
}

std::string call_name(std::string_view operation, const Communicator& on,
                      std::optional<int64_t> bytes) {
  constexpr size_t kMost = 8;
  const Members& members = on.members();
  std::string out(operation);
  if (bytes) out += str(" of ", *bytes, " bytes");
  out += " on " + peer_name(on, on.rank());
  if (!members.job || members.ranks.size() == static_cast<size_t>(members.job->size()))
    return str(out, " of ", on.size());
  std::string ranks;
  for (size_t i = 0; i < std::min(members.ranks.size(), kMost); ++i) {
    const bool last = i + 1 == members.ranks.size();
    ranks += str(i == 0 ? "" : last ? " and " : ", ", members.ranks[i]);
  }
  if (members.ranks.size() > kMost) ranks += str(" and ", members.ranks.size() - kMost, " more");
  return str(out, " (between ranks ", ranks, ")");
}

void check_counts(std::string_view operation, std::span<const int64_t> counts,
                  const Communicator& on) {
  SR_REQUIRE(static_cast<int>(counts.size()) == on.size(), comm, call_name(operation, on), ": got ",
             counts.size(), " counts, wanted one per rank");
  for (size_t r = 0; r < counts.size(); ++r) {
    SR_REQUIRE(counts[r] >= 0, comm, call_name(operation, on), ": count ", counts[r], " for ",
               peer_name(on, static_cast<int>(r)), " is negative");
  }
}

void check_reducible(std::string_view operation, DType dtype, const Communicator& on) {
  SR_REQUIRE(std::find(kReducible.begin(), kReducible.end(), dtype) != kReducible.end(),
             unsupported, call_name(operation, on), ": cannot reduce ", dtype,
             "; convert it to f32 or bf16");
}

void check_peer(std::string_view operation, int peer, const Communicator& on) {
  SR_REQUIRE(peer >= 0 && peer < on.size(), comm, call_name(operation, on), ": there is no rank ",
             peer, " of ", on.size());
}

void check_groups(const std::vector<std::vector<int>>& groups, const Communicator& on) {
  std::vector<bool> taken(static_cast<size_t>(on.size()), false);
  for (const std::vector<int>& group : groups) {
    for (int member : group) {
      check_peer("split", member, on);
      SR_REQUIRE(!taken[static_cast<size_t>(member)], comm, call_name("split", on), ": ",
                 peer_name(on, member), " is named twice");
      taken[static_cast<size_t>(member)] = true;
    }
  }
}

}  // namespace shardrun
