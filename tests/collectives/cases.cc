// What every Communicator's calls must do, when all ranks come. Every rank can make every rank's
// data, so that each checks its own result bit for bit against a plain loop in rank order.
#include "tests/collectives/cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/shape.h"
#include "tests/collectives/staging.h"
#include "tests/support/allocations.h"

namespace shardrun::test {
namespace {

constexpr uint64_t kSeed = 20240607;

/// A cheap mix of the bits (splitmix64): big tests make every rank's data on every rank.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Element i of rank r's data in the named test.
template <class T>
T element(uint64_t test, int r, int64_t i) {
  const uint64_t bits =
      mix(kSeed + (static_cast<uint64_t>(i) * 64 + test * 8 + static_cast<uint64_t>(r)) *
                      0x9e3779b97f4a7c15ull);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<int64_t>(bits % 201) - 100);
  } else {
    // Magnitudes far apart, so that another order of summation gives other bits.
    const float scale = static_cast<float>(uint64_t{1} << (bits >> 60));
    return static_cast<T>((static_cast<float>(bits & 0xffffff) * 0x1p-24f - 0.5f) * scale);
  }
}

template <class T>
std::vector<T> make(uint64_t test, int r, int64_t count) {
  std::vector<T> data(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = element<T>(test, r, i);
  return data;
}

constexpr Reduction kReductions[] = {Reduction::sum, Reduction::max, Reduction::min,
                                     Reduction::prod};

/// Integers wrap around: so do numbers without a sign, of as many bits or more.
template <class A>
auto wrapping(A a) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<uint64_t>(a);
  } else {
    return a;
  }
}

/// The reduction of all ranks' data by a plain loop.
template <class T>
std::vector<T> reduced(uint64_t test, int ranks, int64_t count, Reduction op) {
  using A = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
  std::vector<A> acc(static_cast<size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> next = make<T>(test, r, count);
    for (size_t i = 0; i < next.size(); ++i) {
      const A x = static_cast<A>(next[i]);
      if (r == 0) {
        acc[i] = x;
      } else if (op == Reduction::sum) {
        acc[i] = static_cast<A>(wrapping(acc[i]) + wrapping(x));
      } else if (op == Reduction::prod) {
        acc[i] = static_cast<A>(wrapping(acc[i]) * wrapping(x));
      } else {
        acc[i] = op == Reduction::max ? std::max(acc[i], x) : std::min(acc[i], x);
      }
    }
  }
  std::vector<T> out;
  for (A a : acc) out.push_back(static_cast<T>(a));
  return out;
}

template <class T>
testing::AssertionResult same_bits(const T* got, const T* want, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i, want + i, sizeof(T)) != 0) {
      return testing::AssertionFailure() << "element " << i << " of " << count << ": got " << got[i]
                                         << ", wanted " << want[i] << " (seed " << kSeed << ")";
    }
  }
  return testing::AssertionSuccess();
}

template <class F>
void for_dtypes(F f) {
  f(float{}, DType::f32);
  f(double{}, DType::f64);
  f(bfloat16{}, DType::bf16);
  f(int64_t{}, DType::i64);
  f(int32_t{}, DType::i32);
}

/// Even, uneven, with zeros, all zero.
std::vector<std::vector<int64_t>> count_patterns(int n) {
  std::vector<std::vector<int64_t>> patterns(4);
  for (int r = 0; r < n; ++r) {
    patterns[0].push_back(17);
    patterns[1].push_back(shard_range(10, n, r).size);
    patterns[2].push_back(r % 2 == 0 ? 0 : 5 + r);
    patterns[3].push_back(0);
  }
  return patterns;
}

int64_t sum(const std::vector<int64_t>& v) {
  int64_t s = 0;
  for (int64_t x : v) s += x;
  return s;
}

int64_t before(const std::vector<int64_t>& v, int r) {
  int64_t s = 0;
  for (int i = 0; i < r; ++i) s += v[static_cast<size_t>(i)];
  return s;
}

template <class T>
void check_all_reduce(Communicator& c, uint64_t test, DType dtype, int64_t count, Reduction op) {
  std::vector<T> data = make<T>(test, c.rank(), count);
  Staging staging(c.all_reduce_staging(count, dtype));
  c.all_reduce(data.data(), count, dtype, op, staging.data());
  const std::vector<T> want = reduced<T>(test, c.size(), count, op);
  EXPECT_TRUE(same_bits(data.data(), want.data(), want.size()))
      << "all_reduce of " << count << " " << dtype << " over " << c.size();
}

void all_reduce(Communicator& c) {
  for_dtypes([&](auto zero, DType dtype) {
    using T = decltype(zero);
    for (int64_t count : {0, 1, 7, 1000, 30001}) {
      for (Reduction op : kReductions) {
        check_all_reduce<T>(c, 1, dtype, count, op);
      }
    }
  });
}

/// Buffers of these sizes, apart from each other, have the bits of a reduction of each.
template <class T>
void check_all_reduce_each(Communicator& c, DType dtype, const std::vector<int64_t>& counts,
                           Reduction op) {
  std::vector<std::vector<T>> data;
  std::vector<Reduced> buffers;
  for (size_t b = 0; b < counts.size(); ++b) {
    data.push_back(make<T>(b, c.rank(), counts[b]));
    buffers.push_back({data.back().data(), counts[b]});
  }
  Staging staging(c.all_reduce_each_staging(buffers, dtype));
  c.all_reduce_each(buffers, dtype, op, staging.data());
  for (size_t b = 0; b < counts.size(); ++b) {
    const std::vector<T> want = reduced<T>(b, c.size(), counts[b], op);
    EXPECT_TRUE(same_bits(data[b].data(), want.data(), want.size()))
        << "buffer " << b << " of " << counts.size() << ", " << counts[b] << " " << dtype
        << " over " << c.size();
  }
}

/// Small as a whole, small each, large, some of them empty, more than a slot has room for.
void all_reduce_each(Communicator& c) {
  const std::vector<std::vector<int64_t>> patterns = {{},
                                                      {5},
                                                      {0, 0},
                                                      {3, 0, 1, 11},
                                                      {700, 1, 0, 900, 250, 4000},
                                                      {1, 30001, 0, 7, 17000, 2},
                                                      std::vector<int64_t>(600, 3),
                                                      std::vector<int64_t>(20, 97)};
  for_dtypes([&](auto zero, DType dtype) {
    for (const std::vector<int64_t>& counts : patterns) {
      for (Reduction op : {Reduction::sum, Reduction::max})
        check_all_reduce_each<decltype(zero)>(c, dtype, counts, op);
    }
  });
}

template <class T>
void check_reduce_scatter(Communicator& c, uint64_t test, DType dtype,
                          const std::vector<int64_t>& counts, Reduction op) {
  const int64_t total = sum(counts);
  const std::vector<T> send = make<T>(test, c.rank(), total);
  const size_t mine = static_cast<size_t>(counts[static_cast<size_t>(c.rank())]);
  std::vector<T> recv(mine);
  Staging staging(c.reduce_scatter_staging(counts, dtype));
  c.reduce_scatter(send.data(), recv.data(), counts, dtype, op, staging.data());
  const std::vector<T> want = reduced<T>(test, c.size(), total, op);
  EXPECT_TRUE(same_bits(recv.data(), want.data() + before(counts, c.rank()), mine))
      << "reduce_scatter of " << total << " " << dtype;
}

void reduce_scatter(Communicator& c) {
  for_dtypes([&](auto zero, DType dtype) {
    for (const auto& counts : count_patterns(c.size())) {
      for (Reduction op : kReductions) {
        check_reduce_scatter<decltype(zero)>(c, 2, dtype, counts, op);
      }
    }
  });
}

template <class T>
void check_all_gather(Communicator& c, uint64_t test, DType dtype,
                      const std::vector<int64_t>& counts, bool in_place) {
  std::vector<T> want;
  for (int r = 0; r < c.size(); ++r) {
    const std::vector<T> part = make<T>(test, r, counts[static_cast<size_t>(r)]);
    want.insert(want.end(), part.begin(), part.end());
  }
  const std::vector<T> own = make<T>(test, c.rank(), counts[static_cast<size_t>(c.rank())]);
  std::vector<T> recv(want.size());
  T* place = recv.data() + before(counts, c.rank());
  if (in_place) std::copy(own.begin(), own.end(), place);
  c.all_gather(in_place ? place : own.data(), recv.data(), counts, dtype);
  EXPECT_TRUE(same_bits(recv.data(), want.data(), want.size())) << "all_gather of " << dtype;
}

void all_gather(Communicator& c) {
  for_dtypes([&](auto zero, DType dtype) {
    for (const auto& counts : count_patterns(c.size())) {
      check_all_gather<decltype(zero)>(c, 3, dtype, counts, false);
      check_all_gather<decltype(zero)>(c, 3, dtype, counts, true);
    }
  });
}

/// How many elements rank `from` sends to rank `to`: every third pair nothing.
int64_t pair_count(int from, int to) { return (from + 2 * to) % 3 == 0 ? 0 : 3 * from + to + 1; }

template <class T>
void check_all_to_all(Communicator& c, DType dtype, int64_t scale) {
  const int n = c.size();
  std::vector<int64_t> send_counts, recv_counts;
  for (int p = 0; p < n; ++p) {
    send_counts.push_back(scale * pair_count(c.rank(), p));
    recv_counts.push_back(scale * pair_count(p, c.rank()));
  }
  const std::vector<T> send = make<T>(4, c.rank(), sum(send_counts));
  std::vector<T> recv(static_cast<size_t>(sum(recv_counts)));
  c.all_to_all(send.data(), send_counts, recv.data(), recv_counts, dtype);
  for (int p = 0; p < n; ++p) {
    int64_t offset = 0;  // of this rank's part in p's send buffer
    for (int q = 0; q < c.rank(); ++q) offset += scale * pair_count(p, q);
    for (int64_t i = 0; i < recv_counts[static_cast<size_t>(p)]; ++i) {
      const T want = element<T>(4, p, offset + i);
      ASSERT_TRUE(same_bits(&recv[static_cast<size_t>(before(recv_counts, p) + i)], &want, 1))
          << "all_to_all, from rank " << p;
    }
  }
}

void all_to_all(Communicator& c) {
  for_dtypes([&](auto zero, DType dtype) {
    check_all_to_all<decltype(zero)>(c, dtype, 1);
    check_all_to_all<decltype(zero)>(c, dtype, 0);
  });
}

void bytes_of_every_dtype_move(Communicator& c) {
  for (DType dtype : {DType::boolean, DType::u8, DType::i8, DType::f16}) {
    const int64_t size = size_of(dtype);
    const std::vector<int64_t> counts(static_cast<size_t>(c.size()), 3);
    std::vector<char> own(static_cast<size_t>(3 * size), static_cast<char>(c.rank() % 2));
    std::vector<char> all(own.size() * counts.size());
    c.all_gather(own.data(), all.data(), counts, dtype);
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], static_cast<char>(i / own.size() % 2));
  }
}

void max_of_booleans_is_or(Communicator& c) {
  bool flags[3] = {c.rank() == c.size() - 1, false, true};
  Staging staging(c.all_reduce_staging(3, DType::boolean));
  c.all_reduce(flags, 3, DType::boolean, Reduction::max, staging.data());
  EXPECT_TRUE(flags[0]);
  EXPECT_FALSE(flags[1]);
  EXPECT_TRUE(flags[2]);
}

void nan_wins(Communicator& c) {
  for (int who = 0; who < c.size(); ++who) {
    for (Reduction op : kReductions) {
      float x = c.rank() == who ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
      Staging staging(c.all_reduce_staging(1, DType::f32));
      c.all_reduce(&x, 1, DType::f32, op, staging.data());
      EXPECT_TRUE(std::isnan(x)) << "NaN of rank " << who << " was lost";
    }
  }
}

void broadcast(Communicator& c) {
  for (int root = 0; root < c.size(); ++root) {
    for (int64_t count : {0, 1, 5000}) {
      std::vector<int64_t> data = make<int64_t>(5, c.rank(), count);
      c.broadcast(data.data(), count * 8, root);
      const std::vector<int64_t> want = make<int64_t>(5, root, count);
      EXPECT_TRUE(same_bits(data.data(), want.data(), want.size())) << "root " << root;
    }
  }
}

void send_recv_ring(Communicator& c) {
  if (c.size() == 1) return;
  const int to = (c.rank() + 1) % c.size();
  const int from = (c.rank() + c.size() - 1) % c.size();
  for (int64_t count : {0, 1, 100000}) {
    const std::vector<float> out = make<float>(6, c.rank(), count);
    std::vector<float> in(static_cast<size_t>(count));
    // Rank 0 receives first, so that no circle of senders can form.
    if (c.rank() != 0) c.send(out.data(), count * 4, to);
    c.recv(in.data(), count * 4, from);
    if (c.rank() == 0) c.send(out.data(), count * 4, to);
    const std::vector<float> want = make<float>(6, from, count);
    EXPECT_TRUE(same_bits(in.data(), want.data(), want.size()));
  }
}

/// Even ranks in reverse order, odd ranks in order, the last rank in no group.
void split(Communicator& c) {
  std::vector<std::vector<int>> groups(2);
  for (int r = 0; r + 1 < c.size(); ++r) {
    if (r % 2 == 0) {
      groups[0].insert(groups[0].begin(), r);
    } else {
      groups[1].push_back(r);
    }
  }
  const std::unique_ptr<Communicator> part = c.split(groups);
  if (c.rank() == c.size() - 1) {
    EXPECT_EQ(part, nullptr);
  } else {
    ASSERT_NE(part, nullptr);
    const std::vector<int>& group = groups[static_cast<size_t>(c.rank() % 2)];
    ASSERT_EQ(part->size(), static_cast<int>(group.size()));
    EXPECT_EQ(group[static_cast<size_t>(part->rank())], c.rank());
    // The order of the sum is the group's, not the world's.
    float want = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      const float x = element<float>(7, group[i], 0);
      want = i == 0 ? x : want + x;
    }
    float x = element<float>(7, c.rank(), 0);
    Staging staging(part->all_reduce_staging(1, DType::f32));
    part->all_reduce(&x, 1, DType::f32, Reduction::sum, staging.data());
    EXPECT_TRUE(same_bits(&x, &want, 1));
  }
  c.barrier();
  // A group of everybody, and of the group again.
  std::vector<int> all;
  for (int r = 0; r < c.size(); ++r) all.push_back(r);
  const std::unique_ptr<Communicator> again = c.split({all});
  ASSERT_NE(again, nullptr);
  const std::unique_ptr<Communicator> once_more = again->split({all});
  ASSERT_NE(once_more, nullptr);
  check_all_reduce<float>(*once_more, 8, DType::f32, 100, Reduction::sum);
}

void big_messages(Communicator& c) {
  const int64_t count = (10 << 20) / 4 + 3;
  check_all_reduce<float>(c, 9, DType::f32, count, Reduction::sum);
  check_all_reduce<bfloat16>(c, 9, DType::bf16, count / 2, Reduction::sum);
  std::vector<int64_t> uneven;
  for (int r = 0; r < c.size(); ++r) uneven.push_back(r == 0 ? 1 : count / c.size() + r);
  check_reduce_scatter<float>(c, 10, DType::f32, uneven, Reduction::sum);
  check_all_gather<float>(c, 11, DType::f32, uneven, true);
  check_all_to_all<float>(c, DType::f32, 20000);
}

void calls_in_a_row(Communicator& c) {
  for (int i = 0; i < 200; ++i) {
    int64_t x = c.rank() + i;
    Staging staging(c.all_reduce_staging(1, DType::i64));
    c.all_reduce(&x, 1, DType::i64, Reduction::sum, staging.data());
    ASSERT_EQ(x, c.size() * (c.size() - 1) / 2 + i * c.size());
    c.barrier();
  }
}

/// Of each rank in turn, of all at once, of nobody; and nothing of one call is left in the next.
void any_of(Communicator& c) {
  const uint64_t mine = uint64_t{1} << c.rank();
  uint64_t everybody = 0;
  for (int r = 0; r < c.size(); ++r) everybody |= uint64_t{1} << r;
  for (int turn = 0; turn < c.size(); ++turn) {
    EXPECT_EQ(c.any_of(turn == c.rank() ? mine : 0), uint64_t{1} << turn);
    EXPECT_EQ(c.any_of(0), uint64_t{0});
    EXPECT_EQ(c.any_of(mine), everybody);
    c.barrier();
  }
}

void wrong_arguments(Communicator& c) {
  const std::vector<int64_t> too_many(static_cast<size_t>(c.size()) + 1, 1);
  char byte = 0;
  std::vector<char> bytes(too_many.size());
  try {
    c.all_gather(bytes.data(), bytes.data(), too_many, DType::u8);
    ADD_FAILURE() << "too many counts were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::comm);
    EXPECT_NE(std::string(error.what())
                  .find(str("all_gather on rank ", c.rank(), " of ", c.size(), ": got ",
                            c.size() + 1, " counts")),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(c.broadcast(&byte, 1, c.size()), Error);
  EXPECT_THROW(c.send(&byte, 1, -1), Error);
  EXPECT_THROW(c.split({{0}, {0}}), Error);
  uint16_t half = 0;
  EXPECT_THROW(c.all_reduce(&half, 1, DType::f16, Reduction::sum, nullptr), Error);
  c.barrier();  // still usable: nothing was communicated
}

/// From their second time on, of any size.
void calls_allocate_nothing(Communicator& c) {
  const auto ranks = static_cast<size_t>(c.size());
  for (const int64_t count : {1, 1000, 100000}) {
    const int64_t all = count * c.size();
    std::vector<float> one(static_cast<size_t>(count)), many(static_cast<size_t>(all)),
        more(static_cast<size_t>(all));
    const std::vector<int64_t> counts(ranks, count);
    std::vector<char> memory(
        static_cast<size_t>(64 + std::max(c.all_reduce_staging(all, DType::f32),
                                          c.reduce_scatter_staging(counts, DType::f32))));
    char* staging = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    int64_t allocated = 0;
    for (int repeat = 0; repeat < 2; ++repeat) {
      c.barrier();
      const int64_t before = allocations();
      c.barrier();
      c.all_reduce(many.data(), all, DType::f32, Reduction::sum, staging);
      const Reduced halves[] = {{many.data(), all / 2}, {many.data() + all / 2, all - all / 2}};
      c.all_reduce_each(halves, DType::f32, Reduction::sum, staging);
      c.all_gather(one.data(), many.data(), counts, DType::f32);
      c.reduce_scatter(many.data(), one.data(), counts, DType::f32, Reduction::max, staging);
      c.all_to_all(many.data(), counts, more.data(), counts, DType::f32);
      c.broadcast(one.data(), count * 4, 0);
      if (c.size() > 1 && c.rank() == 0) c.send(one.data(), count * 4, 1);
      if (c.rank() == 1) c.recv(one.data(), count * 4, 0);
      c.barrier();
      allocated = allocations() - before;
      c.barrier();
    }
    EXPECT_EQ(allocated, 0) << count << " elements";
  }
}

}  // namespace

std::vector<Case> communicator_cases() {
  std::vector<Case> cases = {{"all_reduce", all_reduce},
                             {"all_reduce_each", all_reduce_each},
                             {"reduce_scatter", reduce_scatter},
                             {"all_gather", all_gather},
                             {"all_to_all", all_to_all},
                             {"bytes_of_every_dtype_move", bytes_of_every_dtype_move},
                             {"max_of_booleans_is_or", max_of_booleans_is_or},
                             {"nan_wins", nan_wins},
                             {"broadcast", broadcast},
                             {"send_recv_ring", send_recv_ring},
                             {"split", split},
                             {"big_messages", big_messages},
                             {"any_of", any_of},
                             {"calls_in_a_row", calls_in_a_row},
                             {"calls_allocate_nothing", calls_allocate_nothing},
                             {"wrong_arguments", wrong_arguments}};
  for (Case& absent : absent_rank_cases()) cases.push_back(std::move(absent));
  return cases;
}

}  // namespace shardrun::test
