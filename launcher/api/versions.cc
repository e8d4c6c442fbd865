// What this program is built of, and runs on.
#include "base/process/processors.h"
#include "collectives/plain_mpi.h"
#include "kernels/cpu/cpu.h"
#include "planner/solver/highs_mip.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

/// "g++ 12.2.0".
std::string compiler_version() {
#ifdef __clang__
  return "clang++ " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace

std::string version() { return SHARDRUN_VERSION; }

std::vector<std::pair<std::string, std::string>> versions() {
  return {{"shardrun", version()},
          {"compiler", compiler_version()},
          {"oneDNN", onednn_version()},
          {"MPI", mpi_version()},
          {"HiGHS", highs_version()}};
}

int machine_cores() { return usable_cores(); }

}  // namespace shardrun
