// Constraints: what a planner's name and the caller's pins demand of the search.
#pragma once

#include <map>
#include <string>

#include "graph/graph.h"
#include "graph/sharding.h"

namespace shardrun {

class Constraints {
 public:
  /// `pinned`: values that lie in a given Sharding, by name; names that the graph has not are
  /// ignored. `dp` adds its own. Throws invalid_input if a pin does not fit its value.
  Constraints(const Graph& graph, const Mesh& mesh, const std::string& planner,
              const std::map<std::string, Sharding>& pinned);

  /// Values whose whole Sharding is fixed.
  const std::map<std::string, Sharding>& pinned() const { return pinned_; }

 private:
  void pin_data_parallel(const Graph& graph, const Mesh& mesh);

  std::map<std::string, Sharding> pinned_;
};

}  // namespace shardrun
