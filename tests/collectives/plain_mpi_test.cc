// MPI's own collectives do what the backend's do; integers, so that no order of sums matters.
#include "collectives/plain_mpi.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "tests/collectives/mpi_main.h"

namespace shardrun::test {
namespace {

using Ints = std::vector<int32_t>;

Ints own_numbers(int rank, int64_t count) {
  Ints out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1000 * rank);
  return out;
}

/// rank r's count: r + 1 or 4.
std::vector<int64_t> counts(int n, bool even) {
  std::vector<int64_t> out;
  for (int r = 0; r < n; ++r) out.push_back(even ? 4 : r + 1);
  return out;
}

/// What each makes of the same call.
void expect_equal(const std::function<Ints(Communicator&)>& call) {
  const std::unique_ptr<Communicator> plain = make_plain_mpi_communicator();
  EXPECT_EQ(call(*plain), call(mpi_world()));
}

TEST(PlainMpi, MovesAndReducesAsTheBackend) {
  const int n = mpi_world().size(), me = mpi_world().rank();
  std::vector<char> scratch(1 << 16);
  char* staging = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  for (const bool even : {true, false}) {
    const std::vector<int64_t> parts = counts(n, even);
    const int64_t sum = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    const int64_t mine = parts[static_cast<size_t>(me)];
    expect_equal([&](Communicator& c) {
      Ints out(static_cast<size_t>(sum));
      c.all_gather(own_numbers(me, mine).data(), out.data(), parts, DType::i32);
      return out;
    });
    for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
      expect_equal([&](Communicator& c) {
        Ints out(static_cast<size_t>(mine));
        c.reduce_scatter(own_numbers(me, sum).data(), out.data(), parts, DType::i32, op, staging);
        return out;
      });
    }
    // Rank i sends j + 1 to rank j, or 4.
    const std::vector<int64_t> from_each(static_cast<size_t>(n), mine);
    expect_equal([&](Communicator& c) {
      Ints out(static_cast<size_t>(mine * n));
      c.all_to_all(own_numbers(me, sum).data(), parts, out.data(), from_each, DType::i32);
      return out;
    });
  }
  expect_equal([&](Communicator& c) {
    Ints data = own_numbers(me, 77);
    c.all_reduce(data.data(), 77, DType::i32, Reduction::sum, staging);
    return data;
  });
  expect_equal([&](Communicator& c) {
    Ints data = own_numbers(me, 9);
    c.broadcast(data.data(), 36, n - 1);
    return data;
  });
  expect_equal([&](Communicator& c) {
    Ints data = own_numbers(me, 5);
    if (me % 2 == 0 && me + 1 < n) c.send(data.data(), 20, me + 1);
    if (me % 2 == 1) c.recv(data.data(), 20, me - 1);
    return data;
  });
}

TEST(PlainMpi, RefusesWhatMpiHasNoTypeFor) {
  const std::unique_ptr<Communicator> plain = make_plain_mpi_communicator();
  int16_t value = 0;
  EXPECT_THROW(plain->all_reduce(&value, 1, DType::bf16, Reduction::sum, nullptr), Error);
  EXPECT_THROW(plain->split({{0}}), Error);
}

TEST(PlainMpi, NamesItsVersion) {
  EXPECT_NE(mpi_version().find_first_of("0123456789"), std::string::npos) << mpi_version();
}

}  // namespace
}  // namespace shardrun::test
