// How long collectives that overlap with kernels may run before a kernel waits for them.
#pragma once

#include <vector>

#include "graph/program.h"

namespace shardrun {

/// By step: of a collective that ranks make together, the last step that runs before a kernel waits
/// for it whatever lies where: the next one that reads what it, or a collective behind it, writes,
/// or writes what one reads. The end of a phase waits for all. Of other steps the step itself.
/// `holders`: memory_holders(program).
///
///   a = all_reduce(da), db = matmul(…), b = all_reduce(db), dc = matmul(…), update(a), update(b)
///   a ends with the matmul that makes dc, b with the update of a
std::vector<int> overlapped_ends(const Program& program, const std::vector<BufferId>& holders);

}  // namespace shardrun
