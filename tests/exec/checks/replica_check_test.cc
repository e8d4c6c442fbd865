// Bits that flip, on threads.
#include "tests/exec/checks/replica_check.h"

#include <gtest/gtest.h>

#include "tests/collectives/ranks.h"

namespace shardrun {
namespace {

TEST(ReplicaCheck, FindsEveryFlip) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    test::run_ranks(ranks, [](Communicator& world) { test::check_flips_are_found(world, 25); });
  }
}

}  // namespace
}  // namespace shardrun
