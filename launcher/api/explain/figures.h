// A step's arithmetic and the bytes that it sends.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/graph.h"
#include "graph/program.h"

namespace shardrun {

/// Floating-point operations of the whole step, on all ranks together, by op.
std::map<std::string, double> arithmetic(const Graph& step);

/// What a step of this Program gives to other ranks.
int64_t sent_bytes(const Program& program);

}  // namespace shardrun
