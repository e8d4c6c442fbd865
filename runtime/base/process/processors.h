// Processors: those of the machine that this process may use.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace shardrun {

/// Those that the calling thread may run on, ascending, by Linux's numbers; at least one.
std::vector<int> own_processors();
/// The calling thread runs on these from now on.
void run_on(const std::vector<int>& processors);

/// The cores among `processors`: of a core's hardware threads the first.
std::vector<int> cores_of(const std::vector<int>& processors);

/// How many processors can be kept busy by all who share a quota of their time
/// (base/process/control_group.h): rounded up, so at least one.
struct Quota {
  int processors = std::numeric_limits<int>::max();  // no quota
  uint64_t group = 0;                                // equal where it is shared; 0: no quota
};
Quota own_quota();

/// Ranks that mpirun has started on this machine; 1 without it.
int64_t ranks_of_machine();

/// Threads that this process can keep busy: one for each core, no more than its quota.
int usable_cores();

}  // namespace shardrun
