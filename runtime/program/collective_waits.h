// How long collectives beside kernels may run before a kernel waits for them.
#pragma once

#include <vector>

#include "graph/program.h"

namespace shardrun {

/// By step: of a collective that ranks make together, the last step that runs before kernels wait
/// for it whatever lies where: the next kernel that reads what a collective since then writes, or
/// writes what one reads, waits for all of them, and so does the end of a phase. Of other steps the
/// step itself. `holders`: memory_holders(program).
///
///   a = all_reduce(da), db = matmul(…), b = all_reduce(db), dc = matmul(…), update(a)
///   a and b end with the matmul that makes dc
std::vector<int> ends_beside_kernels(const Program& program, const std::vector<BufferId>& holders);

}  // namespace shardrun
