// Windows and blocks in whole training steps, over MPI.
#include <gtest/gtest.h>

#include "tests/collectives/mpi_main.h"
#include "tests/exec/spatial_training.h"

namespace shardrun {
namespace {

TEST(MpiSpatialTraining, RandomStrategiesEqualTheInterpreter) {
  EXPECT_GT(test::check_spatial_training(test::mpi_world(), 2), 5);
}

}  // namespace
}  // namespace shardrun
