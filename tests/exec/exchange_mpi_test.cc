// The exchanges of halos, blocks and rows, over MPI.
#include <gtest/gtest.h>

#include "tests/collectives/mpi_main.h"
#include "tests/exec/exchange_cases.h"

namespace shardrun {
namespace {

TEST(MpiExchange, RandomWindowsAndBlocks) { test::check_exchanges(test::mpi_world()); }
TEST(MpiExchange, RandomRows) { test::check_row_exchanges(test::mpi_world()); }

}  // namespace
}  // namespace shardrun
