// The MPI backend under a real mpirun: the common cases, and agreement with the local backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/philox.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/in_shared_memory.h"
#include "tests/collectives/mpi_main.h"
#include "tests/collectives/ranks.h"

namespace shardrun::test {
namespace {

class MpiCase : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    shared = std::make_unique<InSharedMemory>(mpi_world(), int64_t{16} << 20);
  }
  static void TearDownTestSuite() { shared.reset(); }
  static std::unique_ptr<InSharedMemory> shared;
};
std::unique_ptr<InSharedMemory> MpiCase::shared;

TEST_P(MpiCase, Holds) {
  GetParam().run(mpi_world());
  mpi_world().barrier();
}

TEST_P(MpiCase, HoldsInSharedMemory) {
  GetParam().run(*shared);
  mpi_world().barrier();
}

INSTANTIATE_TEST_SUITE_P(Communicator, MpiCase, testing::ValuesIn(communicator_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Mpi, KnowsItsLauncher) { EXPECT_TRUE(launched_by_mpi()); }

std::vector<float> contribution(int rank, int64_t count) {
  std::vector<float> data;
  const RandomStream stream{11, 0, static_cast<uint64_t>(rank)};
  for (int64_t i = 0; i < count; ++i) data.push_back(stream.normal(static_cast<uint64_t>(i)));
  return data;
}

TEST(Mpi, ReducesToTheBitsOfTheLocalBackend) {
  Communicator& world = mpi_world();
  const int64_t count = 50021;
  const auto reduce = [&](Communicator& c) {
    std::vector<float> data = contribution(c.rank(), count);
    std::vector<char> memory(static_cast<size_t>(c.all_reduce_staging(count, DType::f32)) + 64);
    void* staging = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    c.all_reduce(data.data(), count, DType::f32, Reduction::sum, staging);
    return data;
  };
  std::vector<float> local;
  run_ranks(world.size(), [&](Communicator& c) {
    std::vector<float> data = reduce(c);
    if (c.rank() == 0) local = std::move(data);
  });
  EXPECT_EQ(reduce(world), local);
}

TEST(Mpi, MessageOfAnotherSizeFails) {
  Communicator& world = mpi_world();
  if (world.size() < 2) GTEST_SKIP() << "needs two ranks";
  char bytes[8] = {};
  if (world.rank() == 0) world.send(bytes, 4, 1);
  if (world.rank() == 1) {
    try {
      world.recv(bytes, 8, 0);
      ADD_FAILURE() << "a short message was accepted";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), str("recv of 8 bytes on rank 1 of ", world.size(),
                                     ": expects 8 bytes from rank 0, which sends 4")
                                     .c_str());
    }
  }
  world.barrier();
  if (world.rank() == 0) world.send(bytes, 8, 1);
  if (world.rank() == 1) {
    try {
      world.recv(bytes, 4, 0);
      ADD_FAILURE() << "a long message was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("MPI_ERR_TRUNCATE"), std::string::npos)
          << error.what();
    }
  }
  world.barrier();
}

TEST(Mpi, SharedBuffersAreReducedWhereTheyLie) {
  Communicator& world = mpi_world();
  if (world.size() < 2) GTEST_SKIP() << "needs two ranks";
  const int64_t count = 100003;
  const Memory memory = world.allocate(count * 4);
  ASSERT_EQ(memory.why_private, "");
  float* data = reinterpret_cast<float*>(memory.data.get());
  std::fill_n(data, count, static_cast<float>(world.rank() + 1));
  // What messages would pass through stays as it is.
  const std::vector<char> untouched(
      static_cast<size_t>(world.all_reduce_staging(count, DType::f32)), 0x5a);
  std::vector<char> staging = untouched;
  world.all_reduce(data, count, DType::f32, Reduction::sum, staging.data());
  const int n = world.size();
  EXPECT_EQ(std::count(data, data + count, static_cast<float>(n * (n + 1) / 2)), count);
  EXPECT_EQ(staging, untouched);
}

TEST(Mpi, MemoryGivenBackIsUsedAgain) {
  Communicator& world = mpi_world();
  for (int i = 0; i < 4; ++i) {
    // Of another size on each rank, none on the first.
    const int64_t bytes = world.rank() * int64_t{100000};
    const Memory memory = world.allocate(bytes);
    ASSERT_EQ(memory.data == nullptr, bytes == 0);
    EXPECT_EQ(std::count(memory.data.get(), memory.data.get() + bytes, 0), bytes);
    if (bytes > 0) memory.data.get()[bytes - 1] = 1;
    world.barrier();
  }
}

TEST(Mpi, MeetingTimeOutNamesTheMissingRanks) {
  Communicator& world = mpi_world();
  if (world.size() < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const std::unique_ptr<Communicator> group = world.split({all});
  if (world.rank() == 0) {
    group->set_timeout(1);  // in which the other shows that it lives, however busy the machine is
    try {
      group->barrier();
      ADD_FAILURE() << "nobody else came, and the barrier let go";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::comm);
      const std::string what = error.what(),
                        wanted = str("barrier on rank 0 of ", world.size(), ": waited 1 s for ");
      EXPECT_EQ(what.rfind(wanted + "rank 1", 0), 0u) << what;
      EXPECT_NE(what.find("they make different calls"), std::string::npos) << what;
    }
  }
  world.barrier();
}

TEST(Mpi, DisagreeingCallsFailOnEveryRank) {
  Communicator& world = mpi_world();
  if (world.size() < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const std::unique_ptr<Communicator> group = world.split({all});
  try {
    char byte = 0;
    if (world.rank() == 1) {
      group->barrier();
    } else {
      group->broadcast(&byte, 1, 0);
    }
    ADD_FAILURE() << "calls that differ were let through";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 calls barrier where rank 0 calls broadcast"),
              std::string::npos)
        << error.what();
  }
  world.barrier();
}

// Run alone, where MPI makes no shared segments: calls go by messages, and allocate says why.
TEST(Mpi, DISABLED_WithoutSegmentsMemoryIsPrivate) {
  Communicator& world = mpi_world();
  const Memory memory = world.allocate(1000);
  EXPECT_NE(memory.why_private.find("MPI_Win_allocate_shared failed"), std::string::npos)
      << memory.why_private;
  int64_t sum = world.rank();
  std::vector<char> staging(static_cast<size_t>(world.all_reduce_staging(1, DType::i64)));
  world.all_reduce(&sum, 1, DType::i64, Reduction::sum, staging.data());
  EXPECT_EQ(sum, world.size() * (world.size() - 1) / 2);
}

// Run alone (--gtest_also_run_disabled_tests): rank 0 ends the job while the others wait for it.
TEST(Mpi, DISABLED_AbortEndsTheJob) {
  if (mpi_world().rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    mpi_world().abort();
  }
  mpi_world().barrier();
}

}  // namespace
}  // namespace shardrun::test
