// The kernels that this build runs with, best first.
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace shardrun {

std::span<const KernelList* const> backend_kernels();

}  // namespace shardrun
