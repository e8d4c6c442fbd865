// Local program: one rank's Program made from a Skeleton.
#pragma once

#include "program/partition/skeleton.h"

namespace shardrun {

/// Fills in what depends on the rank: local types, boxes, attributes, collectives. Throws, naming
/// the node, if its op does not make locally what the plan says.
Program local_program(const Skeleton& skeleton, int64_t rank);

}  // namespace shardrun
