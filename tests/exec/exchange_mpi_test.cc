// The exchanges of halos, blocks and rows, over MPI.
#include <gtest/gtest.h>

#include "tests/collectives/mpi_main.h"
#include "tests/exec/exchange_cases.h"

namespace shardrun {
namespace {

TEST(MpiExchange, RandomWindowsAndBlocks) { testing::check_exchanges(testing::mpi_world()); }
TEST(MpiExchange, RandomRows) { testing::check_row_exchanges(testing::mpi_world()); }

}  // namespace
}  // namespace shardrun
