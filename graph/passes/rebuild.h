// Rebuild: copies a Graph node by node, letting a pass replace nodes and change types on the way.
#pragma once

#include <functional>
#include <map>

#include "graph/graph.h"

namespace shardrun {

/// What a pass sees of the copy in progress.
struct Rebuild {
  const Graph& from;
  Graph to;
  std::map<ValueId, ValueId> copied;  // value of `from` -> its stand-in in `to`

  ValueId at(ValueId old) const { return copied.at(old); }
  std::vector<ValueId> at(const std::vector<ValueId>& old) const;
  /// Copies the node with its operands' stand-ins; result types are inferred anew.
  void copy(const Node& node);
};

/// Copies inputs and persistent values, calls `visit` for every node in order (it copies the node
/// or emits something else and fills `copied` for every result), then copies outputs, loss, updates
/// and metrics. Graph values keep their names.
Graph rebuild(const Graph& from, const std::function<void(Rebuild&, const Node&)>& visit);

/// Replaces results by what a pass appended, and knows at once which results died of it, so that
/// the inside of a pattern is not matched a second time.
class Replacer {
 public:
  explicit Replacer(Graph& graph);
  bool used(ValueId id) const {
    return static_cast<size_t>(id) < uses_.size() && uses_[static_cast<size_t>(id)] > 0;
  }
  void replace(ValueId from, ValueId to);
  /// Puts producers before users again and removes what died.
  void finish();

 private:
  void count_new_nodes();
  void release(ValueId id);

  Graph& graph_;
  std::vector<int> uses_;   // by value: operands of living nodes, outputs, loss, updates, metrics
  std::vector<char> dead_;  // by node
  size_t counted_ = 0;      // nodes
};

/// Stable order in which producers stand before users, and the micro phase before the update
/// phase; for passes that append nodes.
void sort_nodes(Graph& graph);

}  // namespace shardrun
