// Checked collectives between processes.
#include "tests/collectives/checked_cases.h"
#include "tests/collectives/mpi_main.h"

namespace shardrun::test {
namespace {

TEST(CheckedProcesses, CallsAreMade) { checked_calls_are_made(mpi_world()); }
TEST(CheckedProcesses, OtherCallsAreRefused) { other_calls_are_refused(mpi_world()); }
TEST(CheckedProcesses, LateRanksAreWaitedFor) { late_ranks_are_waited_for(mpi_world()); }
TEST(CheckedProcesses, CirclesAreFound) { circles_are_found(mpi_world()); }

}  // namespace
}  // namespace shardrun::test
