// StrategyTable: strategies of nodes that are alike, found once for all searches on a mesh.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "planner/space/strategy.h"

namespace shardrun {

/// enumerate_strategies where all that a rule allows may be taken and no rows are exchanged. A
/// search with values computed again, or with other prices of sums, asks for most nodes anew.
class StrategyTable {
 public:
  StrategyTable(const Mesh& mesh, const Cluster& cluster) : mesh_(mesh), cluster_(cluster) {}
  /// As long as this lives.
  const std::vector<Strategy>& of(const Node& node, std::span<const TensorType> in,
                                  std::span<const TensorType> out, const SpmdRule& rule,
                                  bool leave_empty);

 private:
  struct Entry {
    std::vector<SpmdRule::Option> options;
    bool leave_empty;
    std::vector<Strategy> strategies;
  };
  const Mesh& mesh_;
  const Cluster& cluster_;
  std::unordered_map<std::string, std::deque<Entry>> known_;  // by op, attributes and types
};

}  // namespace shardrun
