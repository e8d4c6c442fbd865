// The rules of a graph's nodes as discovery finds them, and the colours that follow.
#pragma once

#include "planner/schedule/colours.h"

namespace shardrun::testing {

/// `graph` must outlive it.
inline RuleOf rules_of(const Graph& graph) {
  static RuleCache cache;
  return [&graph](NodeId n) -> const SpmdRule& {
    const Node& node = graph.node(n);
    return cache.rule(node, graph.types(node.inputs));
  };
}

inline Colours colours_of(const Graph& graph) { return Colours(graph, rules_of(graph)); }

}  // namespace shardrun::testing
