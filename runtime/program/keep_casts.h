// keep_casts: bf16 copies of weights that outlive the step.
#pragma once

#include "graph/graph.h"
#include "graph/program.h"

namespace shardrun {

/// Keeps the bf16 copies of weights from step to step, in a Program with an update that has not
/// been placed yet: the update writes a weight's copy in the pass that writes the weight, and only
/// Program::setup casts. Casts of shards, before they are gathered, too; those of frozen weights
/// need no update. Not where the old copy is still read behind the update, nor where the update
/// does not write the weight itself (it is gathered behind it).
///
///   n = cast(w); … product(x, n) … w', m', v' = adamw(w, …)    becomes
///   setup n = cast(w);    product(x, n) … w', m', v', n' = adamw{copy=bf16}(w, …), in their places
void keep_casts(Program& program);

/// Does the node make such a copy, which may be kept?
bool casts_weight(const Graph& graph, const Node& node);

}  // namespace shardrun
