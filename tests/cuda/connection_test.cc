// Which communicator ranks get, from where they sit; and what is said where there is no GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "collectives/nccl/cuda_communicator.h"

namespace shardrun::cuda {
namespace {

/// CUDA's own word for it is a driver that is too old.
TEST(DeviceCount, TellsThatThereIsNoDriver) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "there is one";
  std::string why;
  EXPECT_EQ(device_count(&why), 0);
  EXPECT_EQ(why, "there is no NVIDIA driver");
}

TEST(Connection, AGpuForEachRankIsNccls) {
  EXPECT_EQ(connection_of({{"gpu a", "one"}, {"gpu b", "one"}}), Connection::nccl);
  EXPECT_EQ(connection_of({{"gpu a", "one"}, {"gpu b", "two"}}), Connection::nccl);
}

TEST(Connection, RanksOfOneMachineThatShareAGpuReachEachOthersMemory) {
  EXPECT_EQ(connection_of({{"gpu a", "one"}, {"gpu a", "one"}}), Connection::peers);
  EXPECT_EQ(connection_of({{"gpu a", "one"}, {"gpu b", "one"}, {"gpu a", "one"}}),
            Connection::peers);
}

/// So one rank trains where NCCL is not installed.
TEST(Connection, ARankAloneNeedsNoNccl) {
  EXPECT_EQ(connection_of({{"gpu a", "one"}}), Connection::peers);
}

TEST(Connection, NothingConnectsThoseOfSeveralMachines) {
  try {
    connection_of({{"gpu a", "one"}, {"gpu b", "two"}, {"gpu b", "two"}});
    FAIL() << "was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    EXPECT_NE(std::string(e.what()).find("ranks 1 and 2 have the same GPU"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace shardrun::cuda
