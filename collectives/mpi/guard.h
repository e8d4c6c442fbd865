// Guard: a process that ends an Open MPI launcher that hangs. mpirun and orted wait for ever for
// hosts that they no longer reach.
#pragma once

#include <sys/types.h>

namespace shardrun::mpi {

/// Is the process one of Open MPI's launchers: mpirun, or a host's orted?
bool is_launcher(pid_t process);

/// Leaves a process behind, in a session of its own, that ends this one's launcher and this process
/// if they still are there after guard_seconds(): SIGTERM, and 0.2 s later SIGKILL. Does nothing
/// under other launchers.
void guard_launcher() noexcept;
/// For ranks to be asked to end a second, or as long as OMPI_MCA_odls_base_sigkill_timeout says;
/// and a quarter of one more. An mpirun that reaches all hosts takes 0.1 s.
double guard_seconds();

}  // namespace shardrun::mpi
