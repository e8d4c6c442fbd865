// Consecutive element-wise steps that one kernel of the device does, so that what only they pass
// on never goes to memory.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "exec/row_chain.h"
#include "graph/program.h"
#include "kernels/element_chain.h"

namespace shardrun {

struct JoinedSteps {
  size_t size = 0;  // steps
  ElementChain chain;
  std::vector<TensorView> in, out;  // of chain.reads and chain.writes
};

/// By their first step. `steps` are the program's, with a null kernel where there is none to join;
/// kernels join if they have the same PreparedKernel::join. Joined steps leave in memory what they
/// would leave one by one, but for results that no step after them reads, and nobody else: those
/// are not written. Nor is anything written before all that the steps find in memory has been
/// read.
///
/// Example: s = add(a, b), y = gelu(s), where s is read by gelu alone: one kernel reads a and b and
/// writes y. If y is placed over b it must lie on it element by element; over half of b, as a bf16
/// result could, the two steps stay two.
std::map<size_t, JoinedSteps> joined_steps(const Program& program, std::span<const RowStep> steps);

}  // namespace shardrun
