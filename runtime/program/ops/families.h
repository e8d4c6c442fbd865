// The families of ops that only steps of Programs have; registry.cc puts their lists together.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace shardrun {

std::vector<OpDef> fused_ops();    // post.h
std::vector<OpDef> packing_ops();  // pack.h
std::vector<OpDef> row_ops();      // group_rows.h
std::vector<OpDef> fused_loss_ops();

/// All of them. Whoever links this library has them in the registry of ops (graph/op_def.h).
std::vector<OpDef> program_ops();

}  // namespace shardrun
