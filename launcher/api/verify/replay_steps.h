// The steps of ranks' Programs at which a replay stops: those that every rank has.
#pragma once

#include <vector>

#include "graph/program.h"

namespace shardrun {

/// A step that every rank has: it makes the same values, or is the same collective.
struct SharedStep {
  std::vector<size_t> of_rank;  // its place among each rank's steps
  /// The Graph values that it makes, by result: -1 where there is none, or one of another phase, or
  /// a copy for the next step. None of a collective.
  std::vector<ValueId> values;
};

/// Collectives, and kernels that make values, in an order that is every rank's. Which steps are
/// fused depends on shapes (runtime/program/fusion/patterns.h), and ranks may have shards of
/// several: where rank 0 has c = matmul_post(a, b, x) and rank 1, of whose shard no row is left,
/// has m = matmul(a, b) and c = add(x, m), c is shared, m is not. Of what ranks make in another
/// order as many as possible are shared.
std::vector<SharedStep> shared_steps(const Graph& graph, const std::vector<Program>& programs);

}  // namespace shardrun
