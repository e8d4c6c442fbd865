// What requests say of the copies that are made of a value for those that read it elsewise than it
// lies: one for each reader, made anew, or shared ones, and what these are made from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/sharding.h"
#include "planner/space/requests.h"
#include "planner/space/search_space.h"

namespace shardrun {

class CopyRequests {
 public:
  /// `by`: "--shard 'w=anew'". Throws invalid_input, naming both, where two say different things.
  void add(const Graph& graph, const Request::Copies& copies, const std::string& by);
  bool empty() const { return of_.empty(); }
  /// Adds to the marks of nodes that make or read such values, so that only equals are folded.
  void mark(const Graph& graph, const Mesh& mesh, std::map<NodeId, std::string>& marks) const;
  /// Sets SearchSpace::regathered, ::from_nearest and ::copied_from.
  void apply(const Graph& graph, SearchSpace& space) const;

 private:
  struct Asked {
    Request::Copies copies;
    std::string by;
  };
  std::map<ValueId, Asked> of_;
};

}  // namespace shardrun
