// MPI's own collectives behind the same interface: what to measure a backend against.
#pragma once

#include <memory>
#include <string>

#include "collectives/communicator.h"

namespace shardrun {

/// Every call is the MPI function of that name (MPI_Allreduce, …), blocking, over all processes.
/// Reductions are in MPI's order, of f32, f64, i32 and i64; a call's elements are at most 2^31 - 1;
/// nothing watches for peers that do not come, and staging is not used. Needs MPI to be initialised
/// (make_mpi_communicator). Throws Error(unsupported) for what MPI cannot do.
std::unique_ptr<Communicator> make_plain_mpi_communicator();

std::string mpi_version();  // "Open MPI v4.1.4"; does not initialise MPI

}  // namespace shardrun
