// The MPI backend under a real mpirun: the common cases, and agreement with the local backend.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/philox.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/mpi_main.h"
#include "tests/collectives/ranks.h"

namespace shardrun::testing {
namespace {

class MpiCase : public ::testing::TestWithParam<Case> {};

TEST_P(MpiCase, Holds) {
  GetParam().run(mpi_world());
  mpi_world().barrier();
}

INSTANTIATE_TEST_SUITE_P(Communicator, MpiCase, ::testing::ValuesIn(communicator_cases()),
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
      EXPECT_STREQ(error.what(), str("recv on rank 1 of ", world.size(),
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

// Run alone (--gtest_also_run_disabled_tests): rank 0 ends the job while the others wait for it.
TEST(Mpi, DISABLED_AbortEndsTheJob) {
  if (mpi_world().rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    mpi_world().abort();
  }
  mpi_world().barrier();
}

}  // namespace
}  // namespace shardrun::testing
