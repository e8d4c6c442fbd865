// Colours: which dims of which values are cut together, and where a node has several ways to do so
// (TOAST's named dimensions and sharding conflicts, section 3).
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// The rule of a node.
using RuleOf = std::function<const SpmdRule&(NodeId)>;
/// As discovery finds them. Both must outlive it.
RuleOf rules_of(const Graph& graph, RuleCache& cache);

/// One way to cut a node along dims of one colour. Options of its rule that cut the same dims are
/// one way, and one whose dims another one cuts too, and more, is none.
struct Way {
  static constexpr int kWhole = -1, kPartial = -2;
  int colour = 0;
  std::vector<int> in, out;  // by operand and result: the dim that is cut, or one of the above
  friend auto operator<=>(const Way&, const Way&) = default;
};

/// What an option cuts; its colour is left open.
Way way_of(const SpmdRule::Option& option);
/// "[S0, -] -> [S0]"; P: parts of a sum (or maximum).
std::string to_string(const Way& way);

/// A node with several ways of one colour: if all dims of the colour are cut, which one does it
/// take? In x x^T, rows and columns of the result have the colour of x's rows. An input with
/// several dims of one colour is one, too: a graph's adjacency [N, N].
struct Conflict {
  NodeId node = -1;          // -1: an input
  ValueId input = kNoValue;  // then this one; its ways are its dims of the colour
  int colour = 0;
  int ways = 0;
  int set = 0;             // of compatible conflicts, which are resolved alike
  std::vector<int> order;  // by resolution of the set: this conflict's way
};

/// Dims that some rule's option cuts at once have one colour, through the whole graph. In y = x w,
/// with x [b, i] and w [i, o], the colours are {x0, y0}, {x1, w0} and {w1, y1}; a residual y + x
/// makes one of {x1, w0} and {w1, y1}. A dim that no option cuts passes to the result's dim of the
/// same place and size, if no option cuts that either: so layer_norm's last dim keeps its colour.
///
/// The dimension graph has a vertex for each way of each node, and an edge where one way leaves a
/// dim cut that another takes so. Two conflicts are compatible (TOAST's "box") if edges between
/// them match their ways one to one, and no path goes across from a way to another one's match.
class Colours {
 public:
  Colours(const Graph& graph, const RuleOf& rule_of);

  int of(ValueId value, size_t dim) const {
    return colour_[first_[static_cast<size_t>(value)] + dim];
  }

  /// Dims of a colour in the whole graph; of a colour that no node can cut, too.
  int dims(int colour) const { return sizes_[static_cast<size_t>(colour)]; }

  std::span<const Way> ways(NodeId node) const { return ways_[static_cast<size_t>(node)]; }
  /// The same of one colour, by index in ways(node).
  std::vector<int> ways(NodeId node, int colour) const;
  const std::vector<Conflict>& conflicts() const { return conflicts_; }
  /// nullptr: the node has one way of the colour, or none.
  const Conflict* conflict(NodeId node, int colour) const;

  /// Of compatible conflicts.
  struct Set {
    int colour = 0, resolutions = 0;
    int digit = 0;  // sets that look alike (a layer's and the next one's) have one
    std::vector<int> conflicts;
  };
  const std::vector<Set>& sets() const { return sets_; }
  int digits() const { return digits_; }
  /// Colours whose uses look alike, as the hidden dims of equal layers: one group.
  const std::vector<std::vector<int>>& alike() const { return alike_; }
  int group(int colour) const { return group_[static_cast<size_t>(colour)]; }
  /// The digits that an action on a group of colours needs, ascending.
  std::vector<int> digits_of(int group) const;
  /// How many values a digit has: below that, 0 or 1 mostly.
  int resolutions(int digit) const;

 private:
  void join_dims(const Graph& graph, const RuleOf& rule_of);
  void find_ways(const Graph& graph, const RuleOf& rule_of);
  void find_conflicts(const Graph& graph);
  void find_sets(const Graph& graph);
  void number_digits(const Graph& graph);
  void group_alike(const Graph& graph);

  std::vector<size_t> first_;  // value -> its first dim's item
  std::vector<int> colour_;    // by item
  std::vector<int> sizes_;     // by colour
  std::vector<std::vector<Way>> ways_;
  std::vector<Conflict> conflicts_;
  std::map<std::pair<NodeId, int>, int> at_node_;  // node, colour -> conflict
  std::vector<Set> sets_;
  int digits_ = 0;
  std::vector<std::vector<int>> alike_;
  std::vector<int> group_;
};

/// Groups of colours with an example of their dims, conflicts and sets, for people.
std::string to_string(const Colours& colours, const Graph& graph);

/// Operators with their types, and each way to cut them: of a parallel loop the results are cut, of
/// a reduction they are parts of a sum (or maximum). Nodes that are alike stand there once.
std::string rules_text(const Colours& colours, const Graph& graph, const RuleOf& rule_of);

}  // namespace shardrun
