// Nodes with many operands or results alike, such as a concatenation of thirty images or its
// gradient's split: their rule follows from that of the node with a few of them, and is only
// confirmed.
//
// A network whose layers read all earlier ones has such nodes of each length. What a search for
// each takes grows with the square of the length; the shorter node is the same for all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/rules/discovery.h"

namespace shardrun {

/// A node of which some of the operands, or of the results, in a row that are of one type are left
/// out.
struct ShorterNode {
  Node node;
  std::vector<TensorType> in;
  bool results = false;  // are those alike results?
  /// Of the shorter node's the first of those alike, and how many there are of these here and in
  /// the node as it is.
  size_t first = 0, kept = 0, all = 0;
};

/// nullopt: the node has few alike, its shape rule takes no fewer, or results depend on how many
/// operands there are; or it is a user's op, of which nothing is taken for granted. Results are
/// left out with their numbers in an attribute that has one for each, the size along some dim. The
/// only operand has there what they add up to.
std::optional<ShorterNode> shorter_node(const Node& node, std::span<const TensorType> in);

/// The shorter node's rule for the node as it is: each option with all those alike placed as the
/// few are. Every option is tried on the node itself, of one size and on two kinds of data: what
/// other sizes and kinds show, they showed on the shorter node. nullopt: those alike are placed
/// differently, or an option does not hold; the node's rule has to be discovered.
std::optional<SpmdRule> lengthened_rule(const SpmdRule& rule, const ShorterNode& shorter,
                                        const Node& node, std::span<const TensorType> in);

}  // namespace shardrun
