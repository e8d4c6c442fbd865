// Bits that flip, in processes.
#include <gtest/gtest.h>

#include "tests/collectives/mpi_main.h"
#include "tests/exec/checks/replica_check.h"

namespace shardrun {
namespace {

TEST(MpiReplicaCheck, FindsEveryFlip) { test::check_flips_are_found(test::mpi_world(), 100); }

}  // namespace
}  // namespace shardrun
