// signature: what kernels can tell of a call.
#pragma once

#include <string>

#include "kernels/kernel.h"

namespace shardrun {

/// Equal for calls that one prepared kernel serves: op, attributes (bit for bit) and types.
std::string signature(const KernelCall& call);

}  // namespace shardrun
