// Which communicator ranks get, from where they sit.
#include <gtest/gtest.h>

#include "base/error.h"
#include "collectives/nccl/cuda_communicator.h"

namespace shardrun::cuda {
namespace {

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
