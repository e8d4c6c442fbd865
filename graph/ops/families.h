// The op families; op_registry.cc puts their lists together.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace shardrun {

std::vector<OpDef> elementwise_ops();
std::vector<OpDef> reduce_ops();
std::vector<OpDef> movement_ops();
std::vector<OpDef> indexing_ops();
std::vector<OpDef> matmul_ops();
std::vector<OpDef> conv_ops();
std::vector<OpDef> pool_ops();
std::vector<OpDef> batch_norm_ops();
std::vector<OpDef> norm_ops();
std::vector<OpDef> segment_ops();
std::vector<OpDef> softmax_ops();
std::vector<OpDef> attention_ops();
std::vector<OpDef> cached_attention_ops();
std::vector<OpDef> recurrence_ops();
std::vector<OpDef> random_ops();
std::vector<OpDef> optimizer_ops();

}  // namespace shardrun
