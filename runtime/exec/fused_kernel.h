// FusedKernel: what runs a chain of a Program's steps as one.
#pragma once

#include <span>
#include <vector>

#include "graph/program.h"
#include "kernels/kernel.h"

namespace shardrun {

/// A step with its kernel and its memory.
struct BoundStep {
  const PreparedKernel* kernel = nullptr;
  std::span<const TensorView> in, out;
};

struct FusedKernel {
  PreparedKernel kernel;
  std::vector<TensorView> in, out;  // its operands and results
};

/// `steps` are the chain's; what they view must stay where it is. By elements: the kernel that the
/// backend makes of them (PreparedKernel::fuse); by rows: their own kernels' run_rows, on the
/// threads of the calling rank. Which rows are done together does not depend on those. Throws
/// internal if the kernels cannot be run so.
FusedKernel fused_kernel(const Program& program, const FusedSteps& chain,
                         std::span<const BoundStep> steps);

}  // namespace shardrun
