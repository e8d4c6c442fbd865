// Several sums in one call, over MPI: through shared memory, and by messages.
#include <gtest/gtest.h>

#include "tests/collectives/mpi_main.h"
#include "tests/exec/one_call.h"

namespace shardrun {
namespace {

TEST(MpiOneCall, EqualsACallForEach) { test::check_one_call(test::mpi_world()); }

TEST(MpiOneCall, EqualsACallForEachBetweenNodes) {
  for (const int per_node : {1, 2}) {
    if (test::mpi_world().size() <= per_node) continue;
    const auto world = make_mpi_communicator(per_node);
    world->set_timeout(30);
    test::check_one_call(*world);
  }
}

}  // namespace
}  // namespace shardrun
