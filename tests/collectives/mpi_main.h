// The world of an MPI test: mpi_main.cc is the main function of every such test.
#pragma once

#include "collectives/communicator.h"

namespace shardrun::test {

/// All ranks of this mpirun. Calls time out after 30 s, so that a rank that fails a test and leaves
/// it early fails the others too instead of hanging them.
Communicator& mpi_world();

}  // namespace shardrun::test
