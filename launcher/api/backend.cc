// The kernel lists of this build.
#include "backend.h"

#include <array>

#include "kernels/cpu/cpu.h"

namespace shardrun {

std::span<const KernelList* const> backend_kernels() {
  static const std::array<const KernelList*, 2> lists = {&cpu_kernels(), &reference_kernels()};
  return lists;
}

}  // namespace shardrun
