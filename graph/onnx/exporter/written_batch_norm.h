// Batch normalisations that an exporter wrote out in inference form, as jax2onnx does for Keras and
// Flax: one node each again.
#pragma once

#include "graph/onnx/flatten.h"

namespace shardrun::importer {

/// The domain of BatchNormalization nodes that were written out. Scale and bias may be absent, the
/// statistics are initialisers of one dim, and input 5 is a value whose shape says which dim of x
/// the channels are: [1, 1, 1, C], or [C] for the last.
inline constexpr const char* kWrittenOut = "shardrun.written_out";

/// Finds, with v and m initialisers of C numbers, s and b initialisers or absent,
///     (x - m) * (s / sqrt(v + eps)) + b,    x * a + (b - m * a) with a = s / sqrt(v + eps)
/// in any order of factors, and puts a BatchNormalization in place of the last node.
void gather_batch_norms(const ModelFile& model, std::vector<FlatNode>& nodes);

}  // namespace shardrun::importer
