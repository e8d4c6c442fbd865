// Windows and blocks in whole training steps, on local ranks.
#include "tests/exec/spatial_training.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/collectives/ranks.h"

namespace shardrun {
namespace {

TEST(SpatialTraining, RandomStrategiesEqualTheInterpreter) {
  for (int ranks : {2, 3, 4, 6}) {
    std::atomic<int64_t> exchanges{0};
    test::run_ranks(ranks, [&](Communicator& world) {
      const int64_t count = test::check_spatial_training(world, 3);
      if (world.rank() == 0) exchanges = count;
    });
    EXPECT_GT(exchanges, 10) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace shardrun
