// Partial kinds: the rules' options for partial operands that can be of use in a graph.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "planner/rules/discovery.h"
#include "planner/space/folding.h"

namespace shardrun {

/// Removes options all of whose partial operands are values that nothing leaves partial so:
/// [P(max)] -> [P(max)] of a transpose, say, where no maximum is ever cut. A replicated operand can
/// be made partial (all ranks but one take zeros), but unless another operand is partial already
/// that gains nothing: the node does the same work, and its result must be reduced.
/// `pinned`: Shardings that values are asked to have; partial ones among them are taken to be
/// everywhere.
void drop_useless_partials(const Graph& graph, const Folding& folding,
                           const std::map<std::string, Sharding>& pinned,
                           std::vector<SpmdRule>& rules);

}  // namespace shardrun
