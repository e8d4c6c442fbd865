// Folding: nodes of a Graph that look alike share one decision.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/sharding.h"

namespace shardrun {

/// Nodes and input values (batch, scalar, parameter, state, constant) are the items; a class holds
/// items that will all get the same strategy. Twelve equal layers become, but for those near the
/// ends, one.
struct Folding {
  struct Class {
    std::vector<NodeId> nodes;    // either nodes, in graph order,
    std::vector<ValueId> values;  // or input values
  };
  std::vector<Class> classes;  // in order of their first member
  std::vector<int> class_of_node;
  std::vector<int> class_of_value;  // -1: computed
  int rounds = 0;                   // hops that two items' surroundings agree on

  /// The class of what makes or holds a value, and which of its results it is (0: held).
  std::pair<int, int> origin(const Graph& graph, ValueId id) const;
};

/// Weisfeiler-Leman refinement: an item's first colour is its op, attributes (random stream keys
/// apart) and types; each round adds the colours of what it reads, by operand, and of what reads
/// it. Six rounds if that leaves few enough classes to plan quickly, fewer otherwise. `pinned`
/// values differ in their Sharding, `marked` nodes in their mark.
Folding fold(const Graph& graph, const std::map<std::string, Sharding>& pinned,
             const std::map<NodeId, std::string>& marked = {});

}  // namespace shardrun
