// with_even_workspace: a kernel whose workspace begins on 256 bytes, as vendors' libraries ask.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace shardrun::cuda {

/// The kernel, whose workspace may begin anywhere: it gets one that begins on 256 bytes, as
/// cublasLtMatmul asks of its own, where parts of an arena begin on 64 (kArenaAlignment).
inline PreparedKernel with_even_workspace(PreparedKernel kernel) {
  constexpr int64_t kBoundary = 256;
  if (kernel.workspace_bytes == 0) return kernel;
  kernel.workspace_bytes += kBoundary;
  kernel.run = [run = std::move(kernel.run)](KernelArgs args) {
    const auto at = reinterpret_cast<uintptr_t>(args.workspace);
    const uintptr_t even = (at + kBoundary - 1) / kBoundary * kBoundary;
    args.workspace = static_cast<char*>(args.workspace) + (even - at);
    run(args);
  };
  return kernel;
}

}  // namespace shardrun::cuda
