// Propagation: from a few cut dims along one mesh axis to how every node is cut.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/mesh.h"
#include "planner/schedule/colours.h"

namespace shardrun {

/// A node that fits what is known in several ways alike: propagation along `axis` stops there, and
/// the node is whole.
struct Unresolved {
  NodeId node = -1;
  int axis = 0;
  std::vector<std::pair<int, Way>> ways;  // as Colours::ways numbers them
};
/// "node 'a' (matmul) along axis m: 0 [S0, -] -> [S0], 1 [-, S0] -> [S1]".
std::string to_string(const Unresolved& unresolved, const Graph& graph, const Mesh& mesh);

/// How values lie and nodes are cut along one mesh axis, as far as that is known.
class Propagation {
 public:
  static constexpr int kOpen = -3, kWhole = Way::kWhole;

  /// `colours` must outlive this.
  Propagation(const Graph& graph, const Colours& colours);

  /// A value is cut along a dim, or (Way::kPartial) left as parts of a sum by its node, or kWhole.
  /// False if it is known to lie otherwise, or if its node has no such way.
  bool cut(ValueId value, int dim);
  /// A node reads an operand cut along a dim, or (kWhole) whole, however the value lies: ways that
  /// read it otherwise are none. Of an operand this is said once.
  void read(NodeId node, size_t operand, int dim);
  /// A node takes a way (an index in Colours::ways), or kWhole. False if it is known to take
  /// another.
  bool take(NodeId node, int way);
  /// The same of what nothing follows from: neither operands nor results are known by it.
  void take_alone(NodeId node, int way);
  /// All dims of a colour; conflicts as the digits say. What is known stays.
  void cut_colour(int colour, const std::vector<int>& digits);

  /// Until nothing more follows. Nodes of which is said how they read operands come first, if one
  /// way fits that. Then what makes a value comes before what reads it: first nodes whose
  /// results are known take the way that leaves them so, then nodes whose operands are known take
  /// the one way that fits most of them. Of several ways of one colour that fit alike it takes what
  /// the `digits` of that colour's sets say; without digits it stops there. All nodes of a step are
  /// judged by what the last step left, so the result does not depend on the order of nodes.
  void run(const std::vector<int>& digits = {});

  /// Index in Colours::ways, kWhole, or kOpen: nothing is known.
  int way(NodeId node) const { return way_[static_cast<size_t>(node)]; }
  /// A dim, Way::kPartial, kWhole, or kOpen.
  int dim(ValueId value) const { return dim_[static_cast<size_t>(value)]; }
  /// Of all that is known.
  uint64_t hash() const;
  /// Nodes at which it stopped, with the ways that fit alike.
  std::vector<std::pair<NodeId, std::vector<int>>> unresolved() const;

 private:
  int dim_of_operand(NodeId node, size_t operand) const;
  std::vector<int> fitting(NodeId node, bool by_results) const;
  bool step(bool by_results, bool in_conflict, const std::vector<int>& digits);
  void settle_readers();
  void settle(NodeId node, int way);
  void place(ValueId value, int dim);

  const Graph& graph_;
  const Colours& colours_;
  struct Links {
    std::vector<std::vector<NodeId>> readers;  // by value
    std::vector<ValueId> tied;                 // by value: what it replaces, or is replaced by
  };
  std::shared_ptr<const Links> links_;  // copies have it in common
  std::vector<int> way_, dim_;
  std::map<std::pair<NodeId, size_t>, int> read_;  // by node and operand
  std::set<NodeId> open_;  // nodes at a value that is known, whose way is not
};

}  // namespace shardrun
