// Node order: the order in which a Graph's nodes run.
#pragma once

#include "graph/graph.h"

namespace shardrun {

/// Puts the nodes into an order under which the most that is ever alive is less, never more, than
/// under the order that they have. Results do not depend on the order, and equal graphs get equal
/// orders, so that all ranks call collectives alike.
///
/// List scheduling, forwards and backwards in turn: what frees more than it makes runs as soon as
/// it can, what makes more than it frees as late as it can, all else as it stood; kept where it
/// lowers the peak.
void order_for_memory(Graph& graph);

}  // namespace shardrun
