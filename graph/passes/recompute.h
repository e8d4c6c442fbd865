// Recomputation: results of the forward pass that are made again where the backward pass reads them
// instead of being kept until then.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// Which nodes of a training step may run again, and the order in which all then run.
///
/// The forward pass ends with the last node that the loss needs and whose result, not a scalar,
/// others read too: the logits, say. What the loss does not need and what stands behind that are
/// the late readers. A node that is made to run again does so in front of the first late reader of
/// its results, and late readers and other nodes that run again take these; what the forward pass
/// reads is as it was.
class Recomputation {
 public:
  explicit Recomputation(const Graph& graph);

  /// Does the node stand in the forward pass? A user's op may not: nothing says that it gives the
  /// same again.
  bool may_run_again(NodeId node) const;
  bool is_late(NodeId reader) const { return late_[static_cast<size_t>(reader)]; }

  struct Run {
    NodeId node = -1;
    bool again = false;
  };
  /// `again`: by node.
  std::vector<Run> order(const std::vector<bool>& again) const;

 private:
  void run_again(NodeId node, const std::vector<bool>& again, std::vector<bool>& done,
                 std::vector<Run>& runs) const;

  const Graph& graph_;
  NodeId end_ = -1;  // of the forward pass
  std::vector<bool> late_;
  std::vector<NodeId> makers_;       // of each node's operands, one node behind the other
  std::vector<size_t> first_maker_;  // by node, and behind the last
};

/// What the nodes of a graph that run again are called: "again/h.0.Gelu".
inline const std::string kAgain = "again/";

/// The graph with these nodes, by name, run a second time. Equal numbers: the same kernels on the
/// same operands; random ops draw by position, and what replaces state is taken from the first run.
/// Throws invalid_input naming the node if there is none, or none that may run again.
Graph with_recomputed(const Graph& graph, const std::set<std::string>& nodes);

}  // namespace shardrun
