// The colours of a graph, by the rules that discovery finds.
#pragma once

#include "planner/schedule/colours.h"

namespace shardrun::test {

inline Colours colours_of(const Graph& graph) {
  static RuleCache cache;
  return Colours(graph, rules_of(graph, cache));
}

}  // namespace shardrun::test
