// What Open MPI's killed jobs leave on a machine.
#pragma once

#include <string>
#include <vector>

namespace shardrun::mpi {

/// Where to look: the machine's own, but for tests.
struct LeftoverPlaces {
  std::string shared = "/dev/shm";  // vader_segment.HOST.USER.JOB.RANK, a rank's messages
  std::string temporary = "/tmp";   // ompi.HOST.USER/pid.N, what launcher N keeps
  std::string processes = "/proc";
};
LeftoverPlaces leftover_places();  // with TMPDIR

/// Removes this user's of them that are nobody's: segments that no process maps, and folders whose
/// launcher is no more, as far as `processes` shows (not those of other containers that share the
/// other two). What is younger than two seconds stays. Returns what was removed. Throws nothing.
std::vector<std::string> sweep_leftovers(const LeftoverPlaces& places);

}  // namespace shardrun::mpi
