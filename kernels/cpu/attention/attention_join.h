// attention_join: what ranks found of a query's keys, together.
#pragma once

#include "kernels/kernel.h"

namespace shardrun::cpu {

KernelImpl attention_join();

}  // namespace shardrun::cpu
